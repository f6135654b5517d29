"""Who owns memory: pages, rows and ids that are given back twice, too early, or never."""

from __future__ import annotations

from ...loops.overlap import AS_OF_0_5_21
from ..blame import at
from ..exhibit import ENDED_KEEPS_ITS_LEASE, RELEASED_KEEPS_ITS_PAGES, Exhibit, case
from ..patch import Edit

CHAPTER = "who owns memory"

abort_during_transfer = Exhibit(
    chapter=CHAPTER,
    name="abort_during_transfer",
    title="Aborted while its KV is on the way",
    references=("vLLM #33377",),
    symptom="Under load, with async scheduling and a KV connector, aborted requests free their "
    "blocks twice (vLLM #33377).",
    here="a has pages 1 and 2 on the decode side. The KV of the first chunk of its prompt has "
    "come, that of the second has not, when a is aborted. The pages have to stay: the network may "
    "write to them. So a stays known until the prefill side has answered. It answers: the pages "
    "are let go, and as a has ended they are free. But whoever hears the answer asks only whether "
    "a is known, and takes it for a request that is to start. Its first token is its last one, a "
    "ends for the second time, and the pages and row 1 are freed again.",
    cure="A request used to be skipped if it was gone; #33377 asks whether it has finished, as one "
    "that waits for a transfer has finished and is not gone. The same is asked here. And the hold "
    "is on the lease, not on the request, which lets go of its lease when it ends.",
    law="leak",
    says="page 1 was freed twice",
    case=case("a: 13 13 -> 1, gone at 1", "pd:pool", kv=3, chunked_prefill_size=1),
    edits=(
        Edit(
            "scheduler.pd:DecodeScheduler.answered",
            healthy="    if req is None or req.finished:\n",
            bug="    if req is None:\n",
        ),
        ENDED_KEEPS_ITS_LEASE,
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        "transfer 2, receive 0 3",
        "a was aborted while step 2's KV was on its way; the answer frees page 1, and then starts "
        "a, which ends again: page 1 is freed once more",
    ),
)


abort_in_flight = Exhibit(
    chapter=CHAPTER,
    name="abort_in_flight",
    title="Aborted, and then finished",
    references=("mini-sglang #111", "mini-sglang 20fcd7f"),
    symptom="A client hangs up while a token is on its way, and that token ends the text. The row "
    "is freed twice, so the next two requests share it. A suspicion about mini-sglang at 20fcd7f, "
    "confirmed: the source frees it in both places, and this model of it shows the double free.",
    here="Step 2 is in flight, and has a in it, when the abort comes in. Aborting takes a out of "
    "the running set and gives its memory up, but does not put it among those that have finished. "
    "Step 2 comes back, and what waited for it is freed: pages 1 and 2 and row 1. Its token is "
    "15, the end of text, and a is not among the finished, so it finishes: row 1 is freed again. "
    "(Its pages would be too, if a released lease still listed them. A last token by length does "
    "no harm: such a request has left the running set at its launch, where the abort does not "
    "find it.)",
    cure="#111 (open) only queues the abort. After the results are processed, it frees whoever is "
    "in no step in flight and did not finish by itself. Here an abort ends the request as "
    "everything else does: the lease is given up once, and the row that comes back finds that it "
    "is not the request's any more.",
    suspected_at="mini-sglang 20fcd7f",
    law="leak",
    says="row 1",
    case=case(
        "a: 18 -> 3, gone at 2", "mini_overlap:token_pool", kv=4, eos={15}, disable_radix_cache=True
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler._finish",
            healthy="    lease, req.lease = req.lease, None\n",
            bug="""\
    lease = req.lease
    if reason is not FinishReason.ABORT or req.device_len == req.max_device_len:
        req.lease = None
""",
        ),
    ),
    points_at=at(
        "receive 0 1, process 2",
        "a is aborted while step 2 runs; step 2's result frees row 1, and its token ends a again: "
        "row 1 is freed once more",
    ),
)


cleaned_twice = Exhibit(
    chapter=CHAPTER,
    name="cleaned_twice",
    title="Two clean-ups free the same id",
    references=("MindIE-LLM #42",),
    symptom="With layers on two machines (edge and cloud) and asynchronous scheduling, the pool of "
    "cache ids holds the same id twice, and two sequences share one (MindIE-LLM #42).",
    here="Two books are kept, and each is cleaned when a ends. a's only step comes back, and the "
    "plugin's post-processing finds the end. The clean-up for that is told at once and frees row "
    "1 and page 1. Then the result goes on to the scheduler, which knows nothing of it, ends a, "
    "and frees both again. They are among the free ones twice: b gets page 1 for its second "
    "position, and is to get it for its third one, too.",
    cure="The edge drops the clean-up request and leaves it to post-processing; only the cloud, "
    "which never sees the end of text, obeys it (7360e68). Here a lease is released once, and "
    "then lists no pages; where a step in flight still names it, closing it twice is closing it "
    "once.",
    law="leak",
    says="2 times among the free ones",
    case=case(
        "a: 10 -> 1; b: 10 -> 2", "mindie_plugin:fill_host", kv=6, rows=2, disable_radix_cache=True
    ),
    edits=(
        Edit(
            "loops.mindie_plugin:deliver",
            healthy="    if output.pending is not None:\n",
            bug="""\
    if output.pending is not None:
        for req in output.pending.batch.reqs:
            if req.rid in output.finished and req.lease is not None:  # clean_eos
                engine.scheduler.leases.close(req.lease)
""",
        ),
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        "process 1, forward 3",
        "the clean-up has freed page 1, and the end of a frees it again; step 3 has one of the "
        "two, and the step behind it is to have the other",
    ),
)


freed_block_unordered_writer = Exhibit(
    chapter=CHAPTER,
    name="freed_block_unordered_writer",
    title="A freed block, and a writer that no stream orders",
    references=("vLLM #45357", "vllm-ascend #14055"),
    symptom="With prefill and decode on separate machines and async scheduling, answers are wrong "
    "now and then. On one GPU, where the same blocks are freed at the same moment, they never are.",
    here="On the decode side step 1 comes back with a's last token, while step 2 is in flight with "
    "a surplus row, which writes a's third position to KV slot 3. The slot is free at once, and "
    "given to b, whose prompt's KV comes over the network. The transfer waits for no stream of "
    "this device: nothing lets it come after step 2. Here the prompt takes longer than the step, "
    "and all goes well, as it would most of the time. No law on tokens sees it; the order does.",
    cure="#45357 keeps freed blocks behind a fence where a KV connector may write to them: they go "
    "back when the newest step launched has come back. That is the lease rule; with two steps in "
    "flight deferred, used here, frees at the same moments.",
    law="race",
    says="transfer of step",
    case=case("a: 16 -> 2; b: 2 -> 1", "pd:pool", kv=3, free_rule="deferred"),
    edits=(
        Edit(
            "memory.pool:deferred",
            healthy="    return not (is_ongoing and lease.last_step == pool.launched_step)\n",
            bug="    return True\n",
        ),
    ),
)


kv_freed_twice = Exhibit(
    chapter=CHAPTER,
    name="kv_freed_twice",
    title="Nobody asks whether the request has finished",
    references=("SGLang #22416",),
    symptom="A step behind the end of a request still has a row for it. If nobody asks whether the "
    "request has finished, that row ends it a second time: its KV and its row go back twice, and "
    "the next two requests are given the same memory (a review of SGLang #22416).",
    here="Step 1 samples the only token that a may produce. Step 2 is launched before the host has "
    "read it, so a has a surplus row there. Step 1 comes back: a has finished, and its lease "
    "waits for step 2. Step 2 comes back: pages 1 and 2 and row 1 are freed, and then its row is "
    "taken for one more token of a, which is over its length still. So a ends again, with a token "
    "too many, and the same pages and the same row are freed once more. The free list has each of "
    "them twice now.",
    cure="SGLang passes over every row whose request has finished or was retracted before it looks "
    "at the token (process_batch_result_decode). Here a request gives its lease up when it ends, "
    "and a row counts only under the lease that it was launched with; a released lease lists no "
    "pages, so that freeing it again would free nothing.",
    law="leak",
    says="page 1 was freed twice",
    case=case("a: 1 -> 1", "overlap:ring", kv=2, options=AS_OF_0_5_21, disable_radix_cache=True),
    edits=(
        ENDED_KEEPS_ITS_LEASE,
        Edit(
            "core.request:Request.append_host",
            healthy="self.known_len == self.max_device_len",
            bug="self.known_len >= self.max_device_len",
        ),
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        "process 1, process 2",
        "a ends with step 1; step 2's result frees page 1, and then its surplus row ends a again: "
        "page 1 is freed once more",
    ),
)


preempted_after_finish = Exhibit(
    chapter=CHAPTER,
    name="preempted_after_finish",
    title="A request that has finished is preempted",
    references=("SGLang #18694", "SGLang #17797"),
    symptom='With priority scheduling the server stops with "Committed KV cache already freed" '
    "(SGLang #17797): a running request of low priority was preempted, and it had finished a "
    "moment before.",
    here="Finishing takes two phases: the result frees a's memory, and the next decode round takes "
    "a out of the running set. Step 1 comes back: a has finished, and page 1 and row 1 are free. "
    "Step 2 was b's prompt, so no decode round has tidied the set up when c comes, with a higher "
    "priority and a wish for more than there is. b is preempted for it, and that is not enough; "
    "so is a, which seems to hold a page: page 1 and row 1 are freed again. c gets page 1, and a, "
    "which is back in the queue although it has ended, is to get it as well.",
    cure="#18694 lets preempt_to_schedule pass over whoever has finished: their KV is free "
    "already. Here a request that ends leaves the running set at once, and what it held is "
    "counted as on its way back.",
    law="ownership",
    says="was handed out while its last lease is in use",
    case=case(
        "a: 1 -> 1; b: 3 -> 1; c at 2: 14 -> 2 priority 1",
        "overlap:ring",
        kv=5,
        rows=2,
        options=AS_OF_0_5_21,
        rules="minisched",
        disable_radix_cache=True,
        schedule_policy="priority",
        priority_scheduling_preemption_threshold=0,
    ),
    edits=(
        Edit(
            "scheduler.scheduler:Scheduler._finish",
            healthy="    self.decode.remove_req(req)\n",
            bug="",
        ),
        ENDED_KEEPS_ITS_LEASE,
        RELEASED_KEEPS_ITS_PAGES,
    ),
    points_at=at(
        "process 1, schedule 0 2, schedule 0 3",
        "a ends with step 1, which frees page 1; preempting a for step 3 frees it again; step 3 "
        "gets it, and a is to get it, too",
    ),
)


preemption_livelock = Exhibit(
    chapter=CHAPTER,
    name="preemption_livelock",
    title="Preempting that frees nothing",
    references=("vllm-ascend #16315", "vLLM #49674", "vLLM #49675", "vLLM #45357", "vLLM #48245"),
    symptom="Throughput falls to 0 tokens a second and stays there: every request is preempted, "
    "queued and admitted, for ever (vllm-ascend #16315). It came with the cure of vLLM #45357, by "
    "which freed blocks wait for the steps in flight.",
    here="a and b fill the pool with their prompts in step 1. a wants a page for its next token. "
    "There is none, so b, the newest, is preempted. But b's page waits for step 1, the pool is as "
    "full as before, and so a is preempted too. Step 1 comes back: both have lost their memory, "
    "its tokens are dropped, both pages are free. a and b are admitted again, and step 2 is step "
    "1 once more. Without overlap nothing is in flight, and b's page would come back at once.",
    cure="#49675 asks before it preempts whether the victim's blocks are fenced, and if so stops "
    "and waits for the steps in flight. Here nobody is preempted while what is on its way back is "
    "enough, and the last one who runs preempts nobody, but waits. With vLLM's rule of #48245, by "
    "which late tokens are delivered, the same edits only waste work.",
    law="livelock",
    says="have not ended",
    case=case(
        "a: 1 -> 1; b: 2 -> 1",
        "overlap:ring",
        kv=2,
        rows=2,
        options=AS_OF_0_5_21,
        run_first="unified",
    ),
    edits=(
        Edit(
            "policy.unified:UnifiedBudget._make_room",
            healthy="""\
        if short <= self.leases.pages_returning:
            return False  # they come back by themselves
""",
            bug="",
        ),
        Edit(
            "policy.unified:UnifiedBudget._make_room",
            healthy="""\
        elif list(self.decode.running_reqs) == [req]:
            self.retraction.wait([req])
            return False
""",
            bug="",
        ),
    ),
    points_at=at(
        "forward 1, forward 2",
        "step 2 is step 1 once more: behind each, both are preempted, and its tokens are dropped",
    ),
)


retracted_by_known_length = Exhibit(
    chapter=CHAPTER,
    name="retracted_by_known_length",
    title="Retraction with output in flight leaves a page behind",
    references=("SGLang #11981", "SGLang #11970", "SGLang #14972", "SGLang #12224"),
    symptom='"token_to_kv_pool_allocator memory leak detected" when the server is idle (SGLang '
    "#11970): with overlap, each retraction loses what the step in flight had taken. An "
    "allocation that fails with both (#14972) was reported two months later; whether for the same "
    "reason is not known.",
    here="Step 5 is in flight, and has taken page 8 for b's fourth position. Now a needs a page "
    "and b is retracted. What b holds is worked out from the tokens that the host knows: prompt "
    "and three outputs, without the last of them, for which nothing is written yet. These are "
    "three positions, but step 5 writes a fourth. Pages 4 and 6 come back (page 2 is in the "
    "cache), and page 8 belongs to nobody for ever. Without overlap the two lengths are the same.",
    cure="#11981 mended the retraction; #12224 then gave up working it out: each request counts "
    "the KV it has committed and allocated, wherever that happens. Here a lease lists its pages, "
    "so nobody has to know a length to free them.",
    law="leak",
    says="was retracted",
    case=case(
        "a: 14 -> 4; b: 17 -> 4",
        "overlap:ring",
        kv=8,
        rows=2,
        options=AS_OF_0_5_21,
        schedule_conservativeness=0.0,
    ),
    edits=(
        Edit(
            "policy.retraction:Retraction.retract",
            healthy="    req.restart()\n",
            bug="""\
    if lease is not None:
        del lease.pages[self.leases.allocator.pages_for(req.known_len - 1) :]
    req.restart()
""",
        ),
    ),
)


row_reused_in_flight = Exhibit(
    chapter=CHAPTER,
    name="row_reused_in_flight",
    title="A row that gets a new owner while a forward reads it",
    references=("mini-sglang #89", "mini-sglang e7d4f65", "mini-sglang 20fcd7f"),
    symptom="A prompt is answered as if it said something else, once in a while, when somebody's "
    "end of text comes just before. A suspicion about mini-sglang at 20fcd7f, confirmed: since "
    "e7d4f65 a request's row is free as soon as its end is read.",
    here="Step 1 samples 10, the end of text, but step 2 is in flight with a surplus row for a: "
    "its forward reads position 1 of row 1 of the token pool, and its sample writes position 2. "
    "Row 1 is free when step 1 has been processed, and b gets it. Its prompt is copied to "
    "positions 0 to 2 on the scheduler's stream, and nothing lets that wait for step 2 on the "
    "engine's stream. Here the copy comes first, a's late token overwrites the last token of b's "
    "prompt, and b's answer is wrong.",
    cure="mini-sglang before e7d4f65 freed nobody whom the ongoing batch names "
    "(finished_reqs.difference(ongoing_reqs)); #89 argued about a race like it and was closed. "
    "Here that rule is called deferred, and what is used is the lease: memory goes back when "
    "every step that names it has come back. On one stream the early free would be harmless: see "
    "row_reuse_on_one_stream.",
    suspected_at="mini-sglang 20fcd7f",
    law="race",
    says="writes what sample of step 2",
    case=case(
        "a: 18 -> 2; b: 7 3 5 -> 1", "mini_overlap:token_pool", kv=4, eos={10}, free_rule="deferred"
    ),
    edits=(
        Edit(
            "memory.pool:deferred",
            healthy="    return not (is_ongoing and lease.last_step == pool.launched_step)\n",
            bug="    return True\n",
        ),
    ),
)
