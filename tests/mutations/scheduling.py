"""Mutations of what runs next, and of what is made of a step that has come back."""

from __future__ import annotations

from .mutation import mutation as m

ADDER, BUDGET = "policy.prefill_adder:PrefillAdder.", "policy.prefill_budget:PrefillBudget."
PREFILL, RETRACTION = "policy.prefill:PrefillManager.", "policy.retraction:Retraction."
QUEUE, DECODE = "policy.waiting_queue:WaitingQueue.", "policy.decode:DecodeManager."
UNIFIED, SCHEDULER = "policy.unified:UnifiedBudget.", "scheduler.scheduler:Scheduler."
RESULTS, ENDINGS = "scheduler.results:Results.", "scheduler.ending:Endings."
REQUEST = "core.request:Request."

SCHEDULING = (
    # -- who is admitted, and in which order -------------------------------------------------------
    m(
        "whoever came last is asked first",
        "order progress",
        (QUEUE + "_head", "min(fronts)", "max(fronts)"),
    ),
    m(
        "priorities are not looked at in the queue",
        "order",
        (
            "policy.schedule_policy:SchedulePolicy.rank",
            "RANKS.get(self.name, ",
            'RANKS.get("fcfs", ',
        ),
    ),
    m(
        "nobody is preempted by a higher priority",
        "order",
        (
            PREFILL + "_victims",
            "return preempt_to_schedule(req, adder.budget, running, self.preemption_threshold)",
            "return []",
        ),
    ),
    m(
        "an equal priority preempts",
        "order livelock",
        ("policy.preemption:preempt_to_schedule", "<= threshold", "< threshold"),
    ),
    m(
        "a preempted request of low priority is spared and the high one goes",
        "order",
        (
            "policy.preemption:preempt_to_schedule",
            "(running.priority, -running.order)",
            "(-running.priority, -running.order)",
        ),
    ),
    m(
        "nobody is admitted while anybody holds memory",
        "progress",
        (
            PREFILL + "may_start",
            "bool(self.waiting_queue) and not self.batch_is_full",
            "bool(self.waiting_queue) and not self.batch_is_full and self.leases.is_idle",
        ),
    ),
    m(
        "who behind a removed request may be luckier is not asked",
        "progress livelock crash",
        (PREFILL + "remove_req", "self._full_at = None", "pass"),
    ),
    m(
        "a refusal for memory is for ever",
        "progress livelock crash",
        (
            PREFILL + "batch_is_full",
            "self._full_at == (self.leases.num_released, self.waiting_queue.num_added)",
            "self._full_at is not None",
        ),
    ),
    m(
        "more requests run than there are rows",
        "budget crash",
        (PREFILL + "_try_add", "if not self.leases.table.available_size:", "if False:"),
    ),
    m(
        "a preempted request is put nowhere",
        "livelock progress ends",
        (RETRACTION + "retract", "self.prefill.waiting_queue.add(req)", "pass"),
    ),
    m(
        "a request starts again while its stale output is in flight",
        "identity crash",
        (QUEUE + "add", "if req.num_stale_output_tokens:", "if False:"),
    ),
    m(
        "requests decode in the order in which they were admitted",
        "order",
        (
            DECODE + "add_reqs",
            "insort(self.running_reqs, req, key=lambda running: running.order)",
            "self.running_reqs.append(req)",
        ),
    ),
    m(
        "the longest match in the cache goes last",
        "",
        ("policy.schedule_policy:lpm", "-len(item[1].pages)", "len(item[1].pages)"),
        equivalent="only slower: any order of prompts is allowed to a policy that asks the cache",
    ),
    # -- budgets of a step -------------------------------------------------------------------------
    m(
        "a chunk is a token too long",
        "budget",
        (
            ADDER + "_start",
            "self.budget.cut(req.extend_len)",
            "min(req.extend_len, self.budget.cut(req.extend_len) + 1)",
        ),
    ),
    m(
        "two prompts have a chunk each in one step",
        "budget",
        (BUDGET + "charge", "self.rem_chunk_tokens -= tokens", "pass"),
    ),
    m(
        "prompts do not count for the prompt tokens of a step",
        "budget",
        (BUDGET + "charge", "self.rem_input_tokens -= tokens", "pass"),
    ),
    m(
        "those who decode beside a chunk take nothing of it",
        "budget",
        (
            BUDGET + "__init__",
            "None if rem_chunk_tokens is None else rem_chunk_tokens - mixed",
            "rem_chunk_tokens",
        ),
    ),
    m(
        "drafts do not count for the budget of a step",
        "budget",
        (UNIFIED + "_running", "min(req.next_draft_len, left - 1)", "req.next_draft_len"),
    ),
    m(
        "those who decode may be more than the budget",
        "budget crash",
        (UNIFIED + "_running", "if not left:", "if False:"),
    ),
    m(
        "the next chunk does not ask for memory",
        "crash",
        (ADDER + "add_chunked_req", "min(wanted, self._room(req))", "wanted"),
    ),
    # -- who decodes, and who has to give way ------------------------------------------------------
    m(
        "one row decodes a step",
        "progress",
        (
            DECODE + "schedule_next_batch",
            "for req in self.running_reqs\n",
            "for req in self.running_reqs[:1]\n",
        ),
    ),
    m(
        "whoever came last decodes alone or never",
        "progress",
        (
            DECODE + "schedule_next_batch",
            "for req in self.running_reqs\n",
            "for req in (self.running_reqs[:-1] or self.running_reqs)\n",
        ),
    ),
    m(
        "the victim is the oldest",
        "order",
        ("policy.retraction:choose_victim", "-req.order", "req.order"),
    ),
    m(
        "the victim has said most",
        "order",
        ("policy.retraction:choose_victim", "(len(req.output_ids),", "(-len(req.output_ids),"),
    ),
    m(
        "under one budget the oldest gives way",
        "order livelock",
        (UNIFIED + "_make_room", "newest = max(", "newest = min("),
    ),
    m(
        "nobody notes that a decode step waits for memory",
        "progress",
        (RETRACTION + "wait", "self.starved = True", "pass"),
    ),
    m(
        "prompts take the memory that a decode step waits for",
        "progress livelock",
        ("policy.run_first:RunFirst._choose", "if self.retraction.starved:", "if False:"),
    ),
    m(
        "a step is chained although somebody waits",
        "progress",
        (
            SCHEDULER + "can_chain",
            "if self.waiting_queue or self.prefill.chunked_req:",
            "if self.prefill.chunked_req:",
        ),
    ),
    m(
        "a burst goes on without memory for it",
        "crash",
        (
            SCHEDULER + "can_repeat",
            "may_run and self.retraction.pages_short(reqs) <= 0",
            "may_run",
        ),
    ),
    m(
        "a row runs a step past its end",
        "ownership crash progress",
        (
            DECODE + "schedule_next_batch",
            "overrun = self.overrun",
            "overrun = self.overrun + 1",
        ),
    ),
    m(
        "a preempted request keeps its lease",
        "leak livelock",
        (RETRACTION + "retract", "self.leases.close(lease)", "pass"),
    ),
    m(
        "a preempted request keeps its drafts in flight",
        "crash livelock client identity progress",
        (
            REQUEST + "restart",
            "self.num_draft_tokens_in_flight, self.spec_token_ids = 0, []",
            "self.spec_token_ids = []",
        ),
    ),
    m(
        "a preempted prompt forgets the last of its tokens",
        "identity leak crash",
        (
            REQUEST + "known_tokens",
            "return prompt if end <= num_prompt else",
            "return prompt if end <= num_prompt + 1 else",
        ),
    ),
    m(
        "a hopeless request ends again at every turn",
        "ends crash client",
        (ENDINGS + "_give_up_hopeless", "self.retraction.hopeless.clear()", "pass"),
    ),
    # -- tokens that come back ---------------------------------------------------------------------
    m(
        "a late token is delivered",
        "ends identity",
        (RESULTS + "process", "if req.lease is not lease:", "if req.finished:"),
    ),
    m(
        "a chunk's token is delivered",
        "identity crash",
        (
            RESULTS + "process",
            "elif deliver:",
            "elif deliver or not req.output_ids:",
        ),
    ),
    m(
        "the chunk that ends a prompt is told by the prompt's length",
        "identity crash",
        (
            "scheduler.commit:add_prompt",
            "is_last = end == req.device_len",
            "is_last = end >= len(req.prompt)",
        ),
    ),
    m(
        "a client never hears the third token",
        "ends client",
        (
            RESULTS + "process",
            "outputs.append(Output(req.rid, token))",
            "outputs.append(Output(req.rid, token)) if len(req.output_ids) != 3 else None",
        ),
    ),
    m(
        "a client hears the second token twice",
        "ends client",
        (
            RESULTS + "process",
            "outputs.append(Output(req.rid, token))",
            "outputs += [Output(req.rid, token)] * (1 + (len(req.output_ids) == 2))",
        ),
    ),
    m(
        "a first token that stops does not",
        "identity",
        (
            RESULTS + "process",
            "if token in req.stop_ids or",
            "if (token in req.stop_ids and len(req.output_ids) > 1) or",
        ),
    ),
    m(
        "a request says one token too many",
        "identity crash",
        (
            RESULTS + "process",
            "req.known_len == req.max_device_len",
            "req.known_len == req.max_device_len + 1",
        ),
    ),
    m(
        "the model's end of text ends only who ignores it",
        "identity",
        (
            SCHEDULER + "receive",
            "frozenset() if req.params.ignore_eos else self.config.eos_ids",
            "self.config.eos_ids if req.params.ignore_eos else frozenset()",
        ),
    ),
    m(
        "a stop string is never late",
        "identity",
        (
            SCHEDULER + "receive",
            "self.listen(req.params.stop, self.config.late_stop_strings)",
            "self.listen(req.params.stop, False)",
        ),
    ),
    m(
        "the tail in which a stop string may begin is that of the shortest one",
        "identity",
        (
            "models.stop_strings:StopStrings.__init__",
            "max(map(len, strings))",
            "min(map(len, strings))",
        ),
    ),
    m(
        "stale output never leaves the count",
        "livelock identity crash progress",
        ("scheduler.stale_outputs:drain", "req.num_in_flight_tokens -= len(ids)", "pass"),
    ),
    m(
        "a stale token is said and not counted",
        "identity livelock crash",
        (REQUEST + "append_stale", "self.device_len += 1", "pass"),
    ),
    m(
        "when one ends, the wishes of all are forgotten",
        "identity",
        (ENDINGS + "_finish", "self.wishing.discard(req.rid)", "self.wishing.clear()"),
    ),
    # -- ends --------------------------------------------------------------------------------------
    m(
        "stop and length are taken for each other",
        "client",
        (
            ENDINGS + "_end",
            "FinishReason.STOP if is_stop else FinishReason.LENGTH",
            "FinishReason.LENGTH if is_stop else FinishReason.STOP",
        ),
    ),
    m(
        "a client does not hear why its request failed",
        "client",
        (
            ENDINGS + "_finish",
            "return Output(req.rid, token, reason, error)",
            'return Output(req.rid, token, reason, "")',
        ),
    ),
    m(
        "whoever is refused hears of nothing",
        "client ends",
        (
            ENDINGS + "_refuse",
            "Output(req.name, None, reason, problem, namesake",
            'Output(req.name, None, reason, "", namesake',
        ),
    ),
    m(
        "what would just fit is refused",
        "client identity",
        (
            "scheduler.refusal:too_long",
            "if req.max_device_len > limit:",
            "if req.max_device_len >= limit:",
        ),
    ),
    m(
        "the settled pages of a failed request are cached",
        "",
        (ENDINGS + "_finish", "if reason is not FinishReason.ERROR:", "if True:"),
        equivalent="only what came back before the failed step counts as settled",
    ),
    m(
        "an aborted request keeps its memory",
        "leak",
        (
            ENDINGS + "_finish",
            "self.leases.close(lease)",
            "self.leases.close(lease) if reason is not FinishReason.ABORT else None",
        ),
    ),
    m(
        "an abort is not heard",
        "abort",
        (
            SCHEDULER + "abort",
            "return [self._finish(req, FinishReason.ABORT, error=error)] if req else []",
            "return []",
        ),
    ),
    m(
        "an abort of who waits is not heard",
        "abort",
        (SCHEDULER + "abort", "if req else []", "if req and req.lease else []"),
    ),
    m(
        "a prompt in chunks is aborted only when it is done",
        "abort",
        (
            SCHEDULER + "abort",
            "if req else []",
            "if req and not (self.prefill.chunked_req and self.prefill.chunked_req.req is req) "
            "else []",
        ),
    ),
    m(
        "who has ended still decodes",
        "ends identity crash leak",
        (ENDINGS + "_finish", "self.decode.remove_req(req)", "pass"),
    ),
    m(
        "an aborted id is never free again",
        "livelock ends leak crash",
        (
            ENDINGS + "_finish",
            "del self.live[req.rid]",
            "(self.live.pop(req.rid) if reason is not FinishReason.ABORT else None)",
        ),
    ),
    m(
        "two requests may have one id",
        "ends crash livelock identity leak",
        (ENDINGS + "_is_taken", "if req.rid in self.live:", "if False:"),
    ),
    # -- log-probabilities -------------------------------------------------------------------------
    m(
        "a prompt's log-probabilities go on a position late",
        "logprobs crash",
        (
            "core.logprobs:next_logprob_at",
            "return start + max(0, num_known - 1)",
            "return start + num_known",
        ),
    ),
    m(
        "the first token of a prompt has no entry among its log-probabilities",
        "logprobs",
        (
            "scheduler.logprobs:learn_prompt",
            "if not req.input_token_logprobs:",
            "if False:",
        ),
    ),
    m(
        "every output brings the prompt's log-probabilities",
        "logprobs client",
        (
            "scheduler.logprobs:of_prompt",
            "[] if req.output_token_logprobs else list(",
            "list(",
        ),
    ),
    m(
        "log-probabilities of what was drafted go to the first token that was heard",
        "logprobs client",
        (
            "scheduler.logprobs:deliver_logprobs",
            "zip(said, found.output_token_logprobs, strict=False)",
            "zip(said, found.output_token_logprobs[::-1], strict=False)",
        ),
    ),
    # -- drafts ------------------------------------------------------------------------------------
    m(
        "a draft in flight is not given back",
        "progress crash leak identity livelock",
        (
            "scheduler.verify:settle",
            "req.num_draft_tokens_in_flight -= num_drafts",
            "req.num_draft_tokens_in_flight -= max(0, num_drafts - 1)",
        ),
    ),
    m(
        "memory for one draft fewer than there are",
        "ownership identity race crash",
        (
            "scheduler.verify:add_verifies",
            "reach = req.reach_with(len(ids) - 1)",
            "reach = req.reach_with(len(ids) - 2)",
        ),
    ),
    m(
        "the drafts of the step before the last are used again",
        "identity",
        ("scheduler.verify:settle", "req.spec_token_ids = list(drafts)", "pass"),
    ),
    # -- the decode side of PD separation ----------------------------------------------------------
    m(
        "the prefill side's token is not counted on the decode side",
        "identity livelock crash",
        (
            "scheduler.prealloc:DecodeScheduler._start_decoding",
            "req.device_len += 1",
            "pass",
        ),
    ),
    m(
        "the prefill side never hears that a request was given up",
        "deadlock livelock leak",
        (
            "scheduler.prealloc:DecodeScheduler._finish",
            "self.given_up.append(req.bootstrap_room)",
            "pass",
        ),
    ),
    m(
        "the first token's log-probabilities stay on the prefill side",
        "logprobs",
        (
            "scheduler.prealloc:DecodeScheduler.answered",
            "if logprobs is not None:",
            "if False:",
        ),
    ),
)
