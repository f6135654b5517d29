"""Tokens on their way: a step that takes an old token, another one's, or none."""

from __future__ import annotations

from ...loops.overlap import AS_OF_0_5_21
from ..blame import at
from ..exhibit import Exhibit, case
from ..patch import Edit

CHAPTER = "tokens on their way"

mlx_old_token = Exhibit(
    chapter=CHAPTER,
    name="mlx_old_token",
    title="A step on a token that is one too old",
    references=("tt-metal #47359", "SGLang #22416"),
    symptom="The accuracy of an evaluation falls as soon as scheduling is asynchronous. Nothing "
    "crashes, and nothing is slow.",
    here="Step 3 is chained upon step 2 in time, but nobody hands it step 2's token, which is on "
    "the device. It takes the newest one that the host knows, and that is step 1's: 5 stands "
    "where 12 should be. From there on everything is wrong.",
    cure="The step takes the token that is on the device, and not the host's, which is one step "
    "old (tt-metal #47359). SGLang's MLX loop (model_runner.py:decode_batch_start_chained) feeds "
    "a chained step the lazy tokens of the one before. An excerpt in a report on #22416 calls "
    "decode_batch_start(prev.req_ids) there; run statement for statement "
    "(tests/loops/test_sglang.py), it gives other tokens from the first chained step on.",
    law="identity",
    says="alone it gives",
    case=case("a: 4 -> 3", "mlx_async:chain", kv=4),
    edits=(
        Edit(
            "relay.lazy_chain:LazyChain.bind",
            healthy="places[req.rid] if token is None else token",
            bug="req.known_tokens(0, req.known_len)[-1] if token is None else token",
        ),
    ),
    points_at=at(
        "sample 2, forward 3",
        "step 3 runs on step 1's token: nobody handed it what step 2 samples",
    ),
)


penalties_read_placeholders = Exhibit(
    chapter=CHAPTER,
    name="penalties_read_placeholders",
    title="Penalties that read -1",
    references=("vLLM #27878", "vLLM #26467", "vLLM #27910", "vLLM #52461", "SGLang #8056"),
    symptom="Penalties have no effect, or the wrong one, as soon as scheduling is asynchronous "
    "(#27878).",
    here="Step 2 is launched while step 1 runs, so the host does not know step 1's token, and its "
    "list of a's output ends with -1. The penalties of step 2 are worked out from that list at "
    "once, and so are those of step 3, from 5 and -1: nothing is taken off for 12, which so comes "
    "a second time, and something is taken off the last token of the vocabulary, which nobody has "
    "said.",
    cure="#26467 waits, just before sampling, for the copy of the tokens in front, and puts each "
    "token in the place of its -1; #27910 mends that where only some requests of a batch have "
    "penalties. A logits processor that somebody brings along could read -1 for longer (#52461, "
    "open). In SGLang's thread version it may read the output while the scheduler appends to it "
    "(#8056, open). Here the sampling of such a step waits until the host knows the tokens before "
    "it.",
    law="identity",
    says="alone it gives",
    case=case("a: 4 -> 3", "vllm_async", kv=4, wishes={"frequency_penalty": 2.0}),
    edits=(
        Edit(
            "worker.sampling_info:_lacks",
            healthy='return "penalty" if missing > late_penalties else ""',
            bug='return ""',
        ),
        Edit(
            "worker.sampling_info:output_before",
            healthy="""\
    if wanted > len(output):
        raise RuntimeError(
            f"penalties of {req.rid} read {wanted} tokens, but the host knows only "
            f"{len(output)}: the loop had to wait."
        )
""",
            bug="""\
    output += [-1] * (wanted - len(output))
""",
        ),
    ),
    points_at=at(
        "sample 2, sample 3",
        "step 3 is sampled with penalties over 5 and -1: nobody knew step 2's token when they were "
        "worked out",
    ),
)


reprefilled_row_filled = Exhibit(
    chapter=CHAPTER,
    name="reprefilled_row_filled",
    title="A sequence that starts again, taken for one that goes on",
    references=("MindIE-LLM #75",),
    symptom="After a preemption an answer goes wrong: a sequence that was computed anew does not "
    "go on as before.",
    here="Step 1 computes both prompts, and leaves a token for a and one for b on the device. "
    "Memory is short, so b is preempted while step 1 runs; its token is dropped. Step 2 computes "
    "b's prompt anew. Its id is among those of the last step, so its row counts as a hit: the "
    "prompt's token is overwritten by what step 1 sampled for b, and its position is raised by "
    "one.",
    cure="Commit 212297e takes rows that are prompts out of the mask, row by row. Here a row is "
    "filled if its own token is unknown, and a pipeline that has been emptied forgets its last "
    "batch.",
    law="identity",
    says="alone it gives",
    case=case(
        "a: 7 7 -> 1; b: 1 -> 1", "mindie_plugin:fill_device", kv=3, rows=2, run_first="unified"
    ),
    edits=(
        Edit(
            "relay.placeholder_fill:prepare_masks_for_filling",
            healthy="        if None in ids:\n",
            bug="        if req.rid in place:\n",
        ),
        Edit(
            "relay.placeholder_fill:PlaceholderFill.reset",
            healthy="    self.last_sequence_ids = ()\n",
            bug="    pass\n",
        ),
    ),
    points_at=at(
        "sample 1, forward 2",
        "step 2 computes b's prompt anew, but takes what step 1 sampled for b in place of the "
        "prompt's token",
    ),
)


ring_lapped = Exhibit(
    chapter=CHAPTER,
    name="ring_lapped",
    title="A ring that laps a token nobody has read yet",
    references=(
        "SGLang #13713",
        "SGLang #13916",
        "sglang-jax #1487",
        "sglang-jax #1504",
        "SGLang #25862",
    ),
    symptom="Accuracy falls under load: GSM8K from 0.955 to 0.700 with 64 requests at a time "
    "(sglang-jax #1487). Nothing crashes, and one request alone is always right.",
    here="The ring has 3 x 2 future slots. Step 1 computes a's prompt, and slot 1 is to hold a's "
    "token. Prompts run first, so a waits while steps 2 to 7 compute b's prompt in six chunks. "
    "Each chunk takes a slot for a token that nobody wants: 2 to 6, and then 1 again. The host "
    "has known a's token since step 1 came back, but step 8 still sends the placeholder -1, and "
    "finds b's token in slot 1.",
    cure="#13713 made the ring as long as all chunks of all running prompts need, and #13916 the "
    "buffer longer once more. #25862 put an end to it: each request has one cell of its own, at "
    "its row of the request table. Here a token that the host knows is sent as itself, so nobody "
    "reads the slot of a step that has come back.",
    law="identity",
    says="alone it gives",
    case=case(
        "a: 7 -> 2; b: 5 1 6 9 2 1 -> 1",
        "overlap:ring",
        kv=11,
        rows=2,
        options=AS_OF_0_5_21,
        chunked_prefill_size=1,
    ),
    edits=(
        Edit(
            "relay.future_map:FutureMapRing.bind",
            healthy="""\
        -lease.future_slot if token is None else token
        for lease, tokens in zip(batch.leases, batch.ids, strict=True)
""",
            bug="""\
        -lease.future_slot if at >= batch.num_extend_reqs else token
        for at, (lease, tokens) in enumerate(zip(batch.leases, batch.ids, strict=True))
""",
        ),
    ),
    points_at=at(
        "sample 7, forward 8",
        "step 7 stores b's token in future slot 1, where a's still waits to be read; step 8 reads "
        "it for a",
    ),
)


stale_placeholder = Exhibit(
    chapter=CHAPTER,
    name="stale_placeholder",
    title="A placeholder that reaches the model",
    references=("vLLM #46899", "vLLM #40768", "vLLM #37092"),
    symptom="A crash on the device that is seldom: token ids are out of bounds where they are "
    "looked up. It takes a request that is left out of a step now and then, as happens with "
    "images or a small token budget.",
    here="Step 1 leaves a's token on the device; the host's copy of the ids holds -1 in its place. "
    "Step 2 is b's prompt, and a is left out of it. Step 3 has a again. Its -1 still stands, "
    "although the host knows the token by now. Only requests that were in the step before are "
    "filled in, and a was not: the model gets -1 as a token.",
    cure="In vLLM it is the placeholders of drafts that leak so, in async_scheduler.py. #46899 "
    "clears them for a request that is left out of a step, #40768 where it was not in the batch "
    "before, and #37092 puts 0 in their place; all three were closed, none was merged. Here a "
    "token that the host knows is sent as itself, and a relay that would have to leave a "
    "placeholder standing refuses to.",
    law="identity",
    says="alone it gives",
    case=case("a: 4 -> 2; b: 7 -> 1", "vllm_async:prev_sampled", kv=6, rows=2, rules="sglang"),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler._add_decodes",
            healthy="(req.output_ids[-1] if start < req.known_len else None,)",
            bug="(None,)",
        ),
        Edit(
            "relay.prev_sampled:PrevSampled.bind",
            healthy="""\
    rids = (rid for rid, row in zip(batch.rids, batch.ids, strict=True) if None in row)
""",
            bug="""\
    rids = [rid for rid, row in zip(batch.rids, batch.ids, strict=True) if None in row]
    common = [rid in self.prev_req_id_to_index for rid in rids]
    targets = [at for at, there in zip(targets, common) if there]
    rids = [rid for rid, there in zip(rids, common) if there]
""",
        ),
    ),
    points_at=at(
        "forward 3",
        "the model reads -1: a was not in step 2, so nobody fills its placeholder in",
    ),
)


token_after_abort = Exhibit(
    chapter=CHAPTER,
    name="token_after_abort",
    title="A token after the abort",
    references=("SGLang #34112", "SGLang #34149", "SGLang #37295"),
    symptom="A client gives a request up, and gets a token all the same before it hears that it "
    "was aborted (SGLang #34112, #34149).",
    here="Step 1 computes a's prompt, and is in flight when the abort comes in. The abort is noted "
    "and waits for the result. Step 1 comes back: its token is appended first, and only then "
    "somebody looks at the note. The client hears 18, and with it that the request was aborted. "
    "The token is the right one; but whoever ends by an abort is to hear none behind it.",
    cure="Open. #37295 drops the token from what is shown, after the memory has been released, as "
    "the release counts the output to know what to free. Here an abort ends the request at once, "
    "whatever is in flight; its memory waits for the steps that name it, and what they bring says "
    "nothing any more.",
    law="ends",
    says="although it had ended (abort)",
    case=case("a: 7 -> 1, gone at 1", "overlap:ring", kv=2, options=AS_OF_0_5_21),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler.abort",
            healthy="    req = self.live.get(rid)\n",
            bug="""\
    req = self.live.get(rid)
    if req and req.num_output_placeholders:  # later, with the token that is on its way
        req.to_finish = FinishReason.ABORT
        return []
""",
        ),
        Edit(
            "scheduler.scheduler:Scheduler.process",
            healthy="            if req.append_host(token):\n",
            bug="""\
            is_last = req.append_host(token)
            if to_finish := vars(req).get("to_finish"):
                outputs.append(self._finish(req, to_finish, token))
                continue
            if is_last:
""",
        ),
    ),
    points_at=at(
        "sample 1, process 1",
        "step 1 was in flight when a was aborted; its token is appended and delivered before "
        "anybody looks at the abort",
    ),
)


zombie_token_replied = Exhibit(
    chapter=CHAPTER,
    name="zombie_token_replied",
    title="A token after the end of text",
    references=("mini-sglang 20fcd7f",),
    symptom="One token too many: after the end of text comes whatever the surplus row has sampled. "
    "A suspicion about mini-sglang at 20fcd7f, confirmed: LLM.generate returns it in token_ids. A "
    "client of the HTTP server does not see it, as that stops reading at the message that says "
    "finished; but the detokenizer opens a new entry for the request, which nobody removes.",
    here="Step 1 samples 10, the end of text. Step 2 was launched before the host could know. When "
    "step 2 comes back, the guard that a has finished stands before the free only: a's memory is "
    "not freed again, but token 15 is appended to a's output and sent to its client.",
    cure="Until e7d4f65 mini-sglang passed over a request that had finished before it looked at "
    "the token; since then it looks only at whether to free. Here the row of a request that has "
    "ended is a wasted row: it is counted, and says nothing.",
    suspected_at="mini-sglang 20fcd7f",
    law="identity",
    says="alone it gives",
    case=case("a: 18 -> 2", "mini_overlap:token_pool", kv=3, eos={10}),
    edits=(
        Edit(
            "scheduler.output_processor:OutputProcessor.late",
            healthy="    if error and self.is_stale(req):\n",
            bug="""\
    if token is not None and req.finished:  # its memory is not freed again, but that is all
        req.append_host(token)
        return [Output(req.rid, token)]
    if error and self.is_stale(req):
""",
        ),
    ),
    points_at=at(
        "sample 2, process 2",
        "a ended with step 1; step 2 has its surplus row, and 15 is sent to a's client",
    ),
)
