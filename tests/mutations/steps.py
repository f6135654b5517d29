"""Mutations of a step: its inputs, the relay of tokens, the device's ops, and what they leave."""

from __future__ import annotations

from .mutation import mutation as m

WORKER, RESULT = "worker.worker:Worker.", "worker.generation_batch_result:GenerationBatchResult."
RING, POOL = "relay.future_map:FutureMapRing.", "relay.future_map_pool:FutureMapPool."
TOKENS, PREVIOUS = "relay.token_pool:TokenPool.", "relay.prev_sampled:PrevSampled."
VERIFY, TOUCHES = "worker.verify_step:", "worker.touches:Touches."

STEPS = (
    # -- streams and what one waits for ------------------------------------------------------------
    m(
        "the copy does not wait for the sample",
        "race",
        (WORKER + "launch_copy", "self.copy_stream.wait(last)", "pass"),
    ),
    m(
        "the copy waits for the forward pass alone",
        "race",
        (
            WORKER + "launch_copy",
            "self.copy_stream.wait(last)",
            "self.copy_stream.wait(pending.logits_output)",
        ),
    ),
    m(
        "the copy reads the buffer of the step before",
        "race identity",
        (
            WORKER + "launch_copy",
            "self.outputs.of(batch.step)",
            "self.outputs.of(batch.step - 1)",
        ),
    ),
    m(
        "all steps leave their tokens in one buffer",
        "race identity",
        ("worker.output_ring:OutputRing.of", "step % len(self)", "0"),
    ),
    m(
        "the ring of outputs is a slot short",
        "race identity",
        ("worker.output_ring:OutputRing.of", "step % len(self)", "step % max(1, len(self) - 1)"),
    ),
    m(
        "a queue of any depth has two output buffers",
        "race identity crash",
        (
            "worker.output_ring:OutputRing.of",
            "step % len(self)",
            "step % min(2, len(self))",
        ),
    ),
    m(
        "the forward pass does not wait for its upload",
        "race",
        ("worker.upload:Uploads.launch", "reader.wait(op)", "pass"),
    ),
    m(
        "the host reads tokens before their copy has run",
        "race identity crash",
        (
            RESULT + "result",
            "values = self.copy_done.synchronize()",
            "values = self.copy_done.value",
        ),
    ),
    m(
        "the host reads log-probabilities before their copy has run",
        "race crash identity client",
        (
            RESULT + "result",
            "self.logprobs.synchronize().tolist()",
            "self.logprobs.value.tolist()",
        ),
    ),
    m(
        "the copy of log-probabilities does not wait for them",
        "race crash identity client",
        ("worker.logprobs:launch_logprobs", "worker.copy_stream.wait(found)", "pass"),
    ),
    m(
        "log-probabilities are computed on the copy stream",
        "",
        (
            "worker.logprobs:launch_logprobs",
            "found = worker.forward_stream.launch(",
            "found = worker.copy_stream.launch(",
        ),
        equivalent="that stream waits for the sampling by then, and no later step writes logits",
    ),
    m(
        "a pipeline's stage does not wait for the one before it",
        "race identity crash",
        (
            "worker.pipeline:PipelineWorker.launch_forward",
            "stage.stream.wait(op)",
            "pass",
        ),
    ),
    m(
        "only the first stage learns of new pages",
        "identity touches race",
        (
            "worker.pipeline:PipelineWorker._run_stage",
            "if len(batch.table_index):",
            "if len(batch.table_index) and stage.number == 0:",
        ),
    ),
    m(
        "a failed step is given back while it still runs",
        "race ownership",
        (RESULT + "fail", "op.synchronize()", "pass"),
    ),
    m(
        "a step that found no memory leaves the page table as it was",
        "identity touches race",
        ("worker.lost_step:fill_table", "if len(index):", "if False:"),
    ),
    # -- how long tensors live ---------------------------------------------------------------------
    m(
        "no batch is recorded while it is in flight",
        "race",
        (
            "worker.batch_record:OverlapWorker.prepare",
            "self.batch_record.record_batch_in_overlap(inputs)",
            "pass",
        ),
        device="cuda",
    ),
    m(
        "the thread records no batch",
        "race",
        (
            "loops.overlap_thread_worker:ForwardThread.forward",
            "self.batch_lists.record_batch_in_overlap(inputs)",
            "pass",
        ),
        device="cuda",
    ),
    m(
        "one batch is recorded, and not two",
        "race",
        (
            "worker.batch_record:BatchRecord.__init__",
            "slots = max(2, depth)",
            "slots = 1",
        ),
    ),
    m(
        "two batches are recorded, however many are in flight",
        "race",
        ("worker.batch_record:BatchRecord.__init__", "slots = max(2, depth)", "slots = 2"),
    ),
    m(
        "the indices of a scatter are not kept",
        "race",
        (PREVIOUS + "resolve", "self.used.append(plan)", "pass"),
        device="cuda",
    ),
    m(
        "a result does not keep its upload",
        "race",
        (
            "worker.upload:Uploads.take",
            "op = self.queued.pop(batch.step, None)",
            "op = None if self.queued.pop(batch.step, None) else None",
        ),
        device="cuda",
    ),
    # -- the relay ---------------------------------------------------------------------------------
    m(
        "the ring is as long as there are rows",
        "race identity",
        (RING + "__init__", "3 * max_running_requests", "1 * max_running_requests"),
    ),
    m(
        "the ring is twice as long as there are rows",
        "race identity",
        (RING + "__init__", "3 * max_running_requests", "2 * max_running_requests"),
    ),
    m(
        "the ring hands out the newest slot again",
        "race identity",
        (RING + "alloc_future_indices", "self.future_ct + 1", "self.future_ct"),
    ),
    m(
        "a chunk's sample goes where its next token lies",
        "identity race",
        (TOKENS + "bind", "if row.deliver else DUMP", "if True else DUMP"),
    ),
    m(
        "a sample goes a position too far",
        "identity touches race",
        (
            TOKENS + "bind",
            "[self.cell(row, row.end) if",
            "[self.cell(row, row.end + 1) if",
        ),
    ),
    m(
        "a row's old tokens are taken for its new lease's",
        "",
        (
            TOKENS + "is_filled",
            "self.filled_for.get(row.lease.row) is row.lease",
            "row.lease.row in self.filled_for",
        ),
        equivalent="what lies before a prompt's first computed position is never gathered",
    ),
    m(
        "a placeholder names the row beside its own",
        "identity",
        (
            "relay.placeholder_fill:FillDevice.bind",
            "PLACEHOLDER_TOKEN - row",
            "PLACEHOLDER_TOKEN - max(0, row - 1)",
        ),
    ),
    m(
        "the host fills in the token of the row beside",
        "identity crash",
        ("relay.placeholder_fill:FillHost.fill", "tokens[row] if", "tokens[max(0, row - 1)] if"),
    ),
    m(
        "the sequences of a pipeline that ran dry are not forgotten",
        "",
        (
            "relay.placeholder_fill:PlaceholderFill.reset",
            "self.last_sequence_ids = ()",
            "pass",
        ),
        equivalent="with nothing in flight the host knows every token, so nobody is looked up",
    ),
    m(
        "the map of the last step has its chunks too",
        "",
        (PREVIOUS + "bind", "if deliver", "if True"),
        equivalent="nobody asks for a chunk's token: the row behind one computes known tokens",
    ),
    m(
        "rows that follow themselves in another order are copied straight",
        "identity",
        (
            PREVIOUS + "_plan",
            "targets == sources == list(range(len(targets)))",
            "targets == list(range(len(targets)))",
        ),
    ),
    m(
        "a lazy step names the rows of the one before backwards",
        "identity",
        (
            "relay.lazy_chain:LazyChain.bind",
            "enumerate(previous.rids)",
            "enumerate(previous.rids[::-1])",
        ),
    ),
    m(
        "a single new page does not reach the page table",
        "identity touches race",
        (WORKER + "_forward", "if len(inputs.table_index):", "if len(inputs.table_index) > 1:"),
    ),
    m(
        "a relay says nothing of what it writes",
        "touches race",
        (
            "relay.future_map:FutureMap.writes",
            'return [Touch("write", "future map", dests)]',
            "return []",
        ),
    ),
    # -- what an op says it touches ----------------------------------------------------------------
    m(
        "a forward pass does not say what KV it reads",
        "touches",
        (
            TOUCHES + "memory",
            'yield Touch("read", KV, listed.up_to(row.start), rid)',
            "pass",
        ),
    ),
    m(
        "a lease goes back at once, and no pass says what KV it touches",
        "touches race identity ownership",
        (
            TOUCHES + "memory",
            'yield Touch("read", KV, listed.up_to(row.start), rid)',
            "pass",
        ),
        (
            TOUCHES + "memory",
            'yield Touch("write", KV, listed.slots[row.start : end], rid)',
            "pass",
        ),
        ("memory.free_rule:lease", "return lease.last_step <= steps.returned", "return True"),
    ),
    m(
        "a forward pass does not say that it writes the page table",
        "touches ownership race",
        (
            TOUCHES + "memory",
            'yield Touch("write", PAGE_TABLE, flat.table_index)',
            "pass",
        ),
    ),
    m(
        "all rows of a draft model share their spare slots",
        "touches race",
        (
            "speculative.draft_model:DraftModel._map_slots",
            "slots += range(self.num_slots + row * k, self.num_slots + row * k + len(spare))",
            "slots += range(self.num_slots, self.num_slots + len(spare))",
        ),
    ),
    # -- sampling, and what it reads of a request --------------------------------------------------
    m(
        "a token is drawn with the key of another seed",
        "identity",
        (
            "core.model_worker_batch:get_model_worker_batch",
            "(req.params, req.sampling_key, position)",
            "(req.params, req.sampling_key ^ 1, position)",
        ),
    ),
    m(
        "a token is drawn with the position before its own",
        "identity",
        (
            "core.model_worker_batch:get_model_worker_batch",
            "range(end - samples + 1, end + 1)",
            "range(end - samples, end)",
        ),
    ),
    m(
        "a seed says nothing",
        "identity",
        ("core.request:Request.sampling_key", "self.params.seed % 2**31", "0"),
        missed="the oracle draws with the same key, as it says what a request is",
    ),
    m(
        "penalties and masks are made, and nobody takes them",
        "identity",
        (
            WORKER + "launch_sample",
            "inputs = replace(inputs, adjustments=self.unsampled.take(batch))",
            "self.unsampled.take(batch)",
        ),
    ),
    m(
        "penalties are never late",
        "identity crash",
        ("worker.sampling_info:output_before", "len(req.prompt) - late)", "len(req.prompt))"),
    ),
    m(
        "penalties count the tokens of the prompt",
        "identity",
        (
            "worker.sampling_info:make_adjustment",
            "Counter(output)",
            "Counter([*prompt, *output])",
        ),
    ),
    m(
        "a mask that looked ahead leaves the grammar there",
        "identity crash",
        ("worker.sampling_info:vocab_masks", "grammar.rollback(ahead)", "pass"),
    ),
    m(
        "penalties are made for a chunk as well",
        "",
        (
            "worker.sampling_info:make_adjustments",
            "row.req.lease is row.lease and row.deliver and",
            "row.req.lease is row.lease and",
        ),
        equivalent="what a chunk samples is dropped",
    ),
    m(
        "a presence penalty is taken off once a time",
        "identity",
        (
            "models.adjust:changes",
            "[wish.presence_penalty if at in counts else 0.0 for at in tokens]",
            "[wish.presence_penalty * counts.get(at, 0) for at in tokens]",
        ),
    ),
    m(
        "a mask allows one token of the bits behind the vocabulary's end",
        "identity crash",
        ("models.adjust:adjust", "(token & 7) & 1", "(token & 6) & 1"),
    ),
    m(
        "on tensors a presence penalty is forgotten",
        "identity",
        (
            "models.adjust_torch:change",
            "new - frequency - presence + bias",
            "new - frequency + bias",
        ),
        device="thread",
    ),
    m(
        "on tensors top-k keeps one more",
        "identity",
        (
            "models.sampling_torch:draw",
            "[min(p.top_k, vocab_size) if",
            "[min(p.top_k + 1, vocab_size) if",
        ),
        device="thread",
    ),
    m(
        "attention reads the page table of the row beside",
        "identity touches",
        (
            "models.hash:HashModel.forward_layer",
            "page_table[row * self.max_len : row * self.max_len + start + length]",
            "page_table[(row ^ 1) * self.max_len : (row ^ 1) * self.max_len + start + length]",
        ),
    ),
    m(
        "attention leaves out the first position",
        "identity",
        (
            "models.hash:HashModel.forward_layer",
            "for p, value in enumerate(kv[slots[:start]]))",
            "for p, value in enumerate(kv[slots[:start]]) if p)",
        ),
    ),
    m(
        "on tensors attention looks beyond a row's end",
        "identity",
        (
            "models.hash_torch:HashTorch.forward",
            "(mix(lower[slots], position) * inside).cumsum(-1)",
            "mix(lower[slots], position + (end > 5)).cumsum(-1)",
        ),
        device="thread",
    ),
    # -- log-probabilities -------------------------------------------------------------------------
    m(
        "a log-probability is a half too low",
        "logprobs",
        (
            "worker.logprobs:read_place",
            "TokenLogprob(place[0], token",
            "TokenLogprob(place[0] - 0.5, token",
        ),
    ),
    m(
        "nobody is given the most likely tokens",
        "logprobs",
        ("worker.logprobs:read_place", "tuple(best))", "tuple(best)[:0])"),
    ),
    m(
        "a token's log-probability is that of the last column",
        "logprobs",
        (
            "worker.logprobs:read_place",
            "TokenLogprob(place[0], token",
            "TokenLogprob(place[-1], token",
        ),
    ),
    m(
        "rows without log-probabilities are not counted past",
        "logprobs",
        (
            "worker.logprobs:read_logprobs",
            "        sample += num_samples\n        if not req.params.return_logprob:\n",
            "        sample += num_samples * req.params.return_logprob\n"
            "        if not req.params.return_logprob:\n",
        ),
    ),
    m(
        "a prompt's log-probabilities have the tokens before their own",
        "logprobs identity",
        (
            "worker.logprobs:input_tokens",
            "slice(first + 1, start + pending.extend_input_len_per_req[row] + 1)",
            "slice(first, start + pending.extend_input_len_per_req[row])",
        ),
    ),
    m(
        "a prompt's log-probabilities are taken a position late",
        "logprobs identity",
        (
            "models.logprob_info:make_logprob_info",
            "enumerate(tokens, first)",
            "enumerate(tokens, first + 1)",
        ),
    ),
    m(
        "the log-probabilities of a prompt are those of the tokens before",
        "logprobs",
        (
            "core.model_worker_batch:wanted_logprobs",
            "row.start + start_len + 1 : row.end + 1",
            "row.start + start_len : row.end",
        ),
    ),
    m(
        "tokens are sampled from the logits of the prompt",
        "identity",
        (
            "worker.logprobs:sampled_logits",
            "if info is None or info.samples_at is None:",
            "if True:",
        ),
    ),
    # -- drafts ------------------------------------------------------------------------------------
    m(
        "a draft is compared with the token before",
        "identity",
        (
            VERIFY + "count_accepted",
            "tokens[xp.asarray(target_at)]",
            "tokens[xp.asarray([max(0, at - 1) for at in target_at])]",
        ),
    ),
    m(
        "no draft is accepted",
        "",
        (VERIFY + "count_accepted", "is_draft.append(there)", "is_draft.append(False)"),
        equivalent="only slower: the model's own token is said in its place",
    ),
    m(
        "the relay's lengths are those before the step",
        "identity crash",
        (VERIFY + "VerifyStep.verify", "xp.add(before, accepted))", "before)"),
    ),
    m(
        "the newest token of a step with drafts is its first",
        "identity",
        (
            VERIFY + "VerifyStep.verify",
            "at = xp.add(xp.asarray(firsts), accepted) - 1",
            "at = xp.asarray(firsts)",
        ),
    ),
    m(
        "a step built by the host goes on a position late",
        "identity crash",
        (
            "worker.unread_steps:read",
            "start = inputs.sampling[first][2] + count - 1",
            "start = inputs.sampling[first][2] + count",
        ),
    ),
)
