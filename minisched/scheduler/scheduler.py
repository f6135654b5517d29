"""receive, next_batch, chain, process, abort: every decision of the host, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..core import (
    ChunkedReq,
    FinishReason,
    ForwardMode,
    Lease,
    NoBatch,
    Output,
    Request,
    Result,
    ScheduleBatch,
)
from ..core.logprobs import next_logprob_at
from ..core.sampling import shown
from ..memory import (
    BlockPool,
    LeasePool,
    PageAllocator,
    PageCache,
    PrefixCache,
    RadixCache,
    ReqToTokenPool,
)
from ..policy import (
    DecodeManager,
    NewTokenRatio,
    Plan,
    PrefillManager,
    Retraction,
    RunFirst,
    SchedulePolicy,
    UnifiedBudget,
    WaitingQueue,
)
from ..trace import NullRecorder, Recorder
from . import output_processor as stale_outputs
from . import verify
from .config import SchedulerConfig
from .output_processor import (
    CompileGrammar,
    deliver_logprobs,
    process_req_with_grammar,
    record_accepted,
    record_grammar,
)
from .verify import Propose, add_verifies

# -- What the scheduler is made of, and what it says about itself ----------------------------------

Listen = Callable[[Sequence[str], bool], Callable[[int], bool]]


def unheard(batch: ScheduleBatch) -> None:
    """Nobody wants to know what is committed."""


class MemoryLeak(RuntimeError):
    """Nothing runs, yet memory is missing or still held."""


class SchedulerState:
    """Memory and policies, wired; and SGLang's four words for where requests are.

    ``waiting_queue``: those without memory. ``new_batch``: the prompts admitted last.
    ``running_batch``: those who decode. ``cur_batch``: what was committed last.
    """

    def __init__(self, config: SchedulerConfig, recorder: Recorder) -> None:
        self.config = config
        self.recorder = recorder
        self._make_memory(config)
        self._make_policies(config)
        rules = config.in_force
        self.lets_go_early = rules.length_frees == "last_launch" and rules.free_rule == "at_once"
        self.live: dict[str, Request] = {}  # received and not ended
        self.wishing: set[str] = set()  # those of them with a grammar, penalties, and so on
        self.num_received = 0  # so far, without those that were refused
        self.outbox: list[Output] = []
        self.batches_in_flight = 0
        self.step = 0
        self.new_batch: ScheduleBatch | None = None
        self.cur_batch: ScheduleBatch | None = None
        self.propose: Propose | None = None  # drafts from known tokens, at most so many
        self.on_commit: Callable[[ScheduleBatch], None] = unheard  # hears of every step
        self.compile_grammar: CompileGrammar | None = None  # see grammar_manager.py
        self.listen: Listen | None = None  # hears stop strings in a request's tokens, maybe late

    def _make_memory(self, config: SchedulerConfig) -> None:
        self.recorder.mark(
            "kv pool", pages=config.num_pages, page_size=config.page_size,
            rows=config.max_running_requests,
        )  # fmt: skip
        self.allocator = PageAllocator(config.num_pages, config.page_size, self.recorder)
        self.table = ReqToTokenPool(config.max_running_requests, self.recorder)
        rules = config.in_force
        self.tree: RadixCache | None = None  # the page cache, where it is one
        self.page_cache: PageCache | None = None
        if not config.disable_radix_cache and rules.prefix_cache == "blocks":
            self.page_cache = BlockPool(
                config.page_size, self.recorder, rules.block_line == "one_line"
            )
        elif not config.disable_radix_cache:
            policy = config.radix_eviction_policy
            self.page_cache = self.tree = RadixCache(
                config.page_size, policy, self.recorder, rules.split_counts
            )
        self.leases = LeasePool(self.allocator, self.table, self.page_cache, rules.free_rule)
        self.prefix_cache = PrefixCache(
            self.leases, self.recorder, enters_cache=rules.enters_cache, edges_end=rules.edges_end,
            prompt_pages=rules.prompt_pages, output_pages=rules.output_pages,
        )  # fmt: skip

    def _make_policies(self, config: SchedulerConfig) -> None:
        recorder, leases, rules = self.recorder, self.leases, config.in_force
        chunk = config.chunked_prefill_size
        policy = SchedulePolicy(
            config.schedule_policy, self.tree, config.random_seed,
            config.enable_priority_scheduling, refreshes=rules.waiting_prefixes == "refreshed",
        )  # fmt: skip
        old_place = rules.retracted_waits == "old_place"
        self.waiting_queue = WaitingQueue(policy, recorder, old_place)
        self.new_token_ratio = NewTokenRatio(config.schedule_conservativeness, recorder)
        self.decode = DecodeManager(config.run_ahead, config.overrun)
        self.prefill = PrefillManager(
            self.waiting_queue, leases, self.prefix_cache, self.new_token_ratio, recorder,
            chunk_size=None if chunk == -1 else chunk,
            max_prefill_tokens=config.max_prefill_tokens,
            preemption_threshold=(
                config.priority_scheduling_preemption_threshold if policy.by_priority else None
            ),
            rules=rules,
        )  # fmt: skip
        evicts_ahead = rules.evicts == "ahead" and self.tree is not None
        self.evicts_by_page = evicts_ahead and config.page_size > 1
        self.retraction = Retraction(self.decode, self.prefill, leases, recorder, evicts_ahead)
        self.run_first = RunFirst(
            rules.run_first, config.enable_mixed_chunk,
            self.decode, self.prefill, self.retraction, leases,
            UnifiedBudget(
                config.prefill_budget, self.decode, self.prefill, self.retraction, leases,
                recorder, rules.newcomer_fits, rules.chunk_lacks_pages,
            ),
            rules.plans_again,
        )  # fmt: skip

    @property
    def running_batch(self) -> list[Request]:
        """The requests that decode, in the order in which their prompts were done."""
        return self.decode.running_reqs

    @property
    def awaits_others(self) -> bool:
        """Whether something from outside may help those who can't run (``scheduler/pd.py``).

        Nothing can, where this is the only scheduler.
        """
        return False

    @property
    def num_retractions(self) -> int:
        """How often a request has lost its memory so far."""
        return self.retraction.num_retractions

    @property
    def num_used_tokens(self) -> int:
        """KV slots held by requests; what is cached and could be evicted is not counted."""
        used = self.allocator.num_pages - self.leases.available_pages
        return used * self.allocator.page_size

    @property
    def token_usage(self) -> float:
        """Share of the KV pool that requests hold."""
        return self.num_used_tokens / self.config.num_slots

    def flush_cache(self) -> bool:
        """Forget every cached prefix; refused (False) while anything holds memory."""
        if not self.leases.is_idle:
            return False
        if self.page_cache is not None:
            self.allocator.free(self.page_cache.evict(self.page_cache.total_size))
        return True

    def self_check(self) -> None:
        """At idle: every page is free or cached, every row free (``self_check_during_idle``).

        Raises:
            MemoryLeak: they are not.
        """
        protected = self.page_cache.protected_size if self.page_cache else 0
        available, total = self.leases.available_pages, self.allocator.num_pages
        if available != total:
            raise MemoryLeak(
                f"{available} pages are free or evictable and {protected} protected, "
                f"but there are {total} and nothing runs."
            )
        if not self.leases.is_idle:
            free, size = self.table.available_size, self.table.size
            raise MemoryLeak(f"{free} of {size} rows are free, but nothing runs.")


# -- How requests end: each once, with a reason, and with its memory on its way back ---------------


class Endings(SchedulerState):
    """The part of the scheduler that refuses and ends requests, and hears of rows too late."""

    def _is_taken(self, req: Request) -> str:
        """Why a request of good form can't come in now, or nothing."""
        if req.rid in self.live:
            return f"request id {shown(req.rid)} is already in use; each request needs its own."
        if req.finished:
            return f"request {shown(req.rid)} has run already; a new run needs a new Request."
        return ""

    def _refuse(self, req: Request, problem: str) -> Output:
        """End a request that never came in, and nobody else, whatever id it has.

        One that is sent once more keeps what has come of it.
        """
        reason, other = FinishReason.ERROR, self.live.get(req.name)
        if other is not req and not req.finished:
            req.finish_reason, req.error = reason, problem
        if other is None:
            self.recorder.mark("finish", rid=req.name, reason=reason.value, outputs=0)
        else:
            self.recorder.mark("refused", rid=req.name)
        return Output(req.name, None, reason, problem, namesake=other is not None)

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> Output:
        """End a request, wherever it is."""
        req.finish_reason, req.error = reason, error
        self.recorder.mark("finish", rid=req.rid, reason=reason.value, outputs=len(req.output_ids))
        self.prefill.remove_req(req)
        self.decode.remove_req(req)
        if self.live.get(req.rid) is req:
            del self.live[req.rid]
            self.wishing.discard(req.rid)
        lease, req.lease = req.lease, None
        if lease is not None and not self._has_let_go(lease):
            if reason is not FinishReason.ERROR:
                self.prefix_cache.cache_finished_req(req, lease)
            self.leases.close(lease)
        return Output(req.rid, token, reason, error)

    def _end(self, req: Request, token: int) -> Output:
        """A request got its last token; ``error`` is set where its grammar did not allow it."""
        if req.error:
            return self._finish(req, FinishReason.ERROR, token, req.error)
        is_stop = token in req.stop_ids or req.is_complete
        reason = FinishReason.STOP if is_stop else FinishReason.LENGTH
        return self._finish(req, reason, token)

    def _last_is_launched(self, req: Request, lease: Lease) -> None:
        """The step of a request's last token is in flight; mini-sglang frees its memory now."""
        if self.lets_go_early:
            self.prefix_cache.cache_finished_req(req, lease)
            self.decode.remove_req(req)
            self.leases.close(lease)

    def _has_let_go(self, lease: Lease) -> bool:
        """Whether a request gave its memory back before it ended."""
        return self.lets_go_early and lease.is_released

    def _is_stale(self, req: Request) -> bool:
        """Whether output of a lease that is gone still counts for the request."""
        return self.config.keep_stale_outputs and not req.finished

    def _late(
        self, batch: ScheduleBatch, req: Request, lease: Lease, token: int | None, error: str = ""
    ) -> list[Output]:
        """A row whose request had lost its memory by now: stale output, or good for nothing.

        Where stale output counts, the failure of its step does too: the steps behind it, which may
        be on their way, took their tokens from it.
        """
        if error and self._is_stale(req):
            return [self._finish(req, FinishReason.ERROR, error=error)]
        if error or token is None or lease.is_spoiled or not self._is_stale(req):
            self.recorder.mark("wasted row", rid=req.rid, step=batch.step)
            return []
        self.recorder.mark("stale output", rid=req.rid, step=batch.step)
        req.append_stale(token)
        if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
            return [self._end(req, token)]
        return [Output(req.rid, token)]

    def _give_up_hopeless(self) -> None:
        """End a request that is alone and still finds no memory (SGLang ``retract_decode``)."""
        for req in self.retraction.hopeless:
            need = self.allocator.pages_for(req.device_len)
            held = len(req.lease.pages) if req.lease else 0
            left = held + self.leases.available_pages
            error = f"it needs {need} pages of KV memory, but only {left} can be had."
            self.outbox.append(self._finish(req, FinishReason.ERROR, error=error))
        self.retraction.hopeless.clear()


# -- What a step's result means to the requests that were in it ------------------------------------


class Results(Endings):
    """The part of the scheduler that takes batches back."""

    def process(self, batch: ScheduleBatch, result: Result) -> list[Output]:
        """Take a batch back: deliver its tokens, end what is done, free what nobody names.

        Raises:
            RuntimeError: an earlier batch has not come back yet.
        """
        self.batches_in_flight -= 1
        self.leases.came_back(batch.step)
        if result.error:
            self._spoil(batch.leases)
        if self.config.num_draft_tokens and not result.error:
            return self._process_verified(batch, result)
        tokens = [0] * len(batch.reqs) if result.error else result.tokens
        drained = stale_outputs.drain(batch) if self.config.keep_stale_outputs else []
        outputs: list[Output] = []
        for at in sorted(result.nan_samples):
            outputs += self._end_if_nan(batch, batch.reqs[at], batch.leases[at])
        columns = zip(batch.reqs, batch.leases, batch.delivers, tokens, strict=True)
        for at, (req, lease, deliver, token) in enumerate(columns):
            if req.lease is not lease:  # ended or retracted while the step was running
                outputs += self._late(batch, req, lease, token if deliver else None, result.error)
            elif result.error:
                outputs.append(self._finish(req, FinishReason.ERROR, error=result.error))
            elif deliver:
                lease.settled_len = req.known_len  # as ``_deliver``, for every token passes here
                req.append_host(token)
                if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
                    outputs.append(self._end(req, token))
                else:
                    outputs.append(Output(req.rid, token))
                    if req.device_len == req.max_device_len:
                        self._last_is_launched(req, lease)
            if at < batch.num_extend_reqs:
                self._cache_prompt(batch, at)
        if result.logprobs:
            deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)
        self._came_back(batch, drained, outputs)
        return outputs

    def _process_verified(self, batch: ScheduleBatch, result: Result) -> list[Output]:
        """The same for steps that may carry drafts: a row has several tokens."""
        drained = stale_outputs.drain(batch) if self.config.keep_stale_outputs else []
        outputs: list[Output] = []
        tokens_by_row = verify.accepted_tokens(batch, result)
        drafts_by_row = verify.drafts_by_row(batch, result)
        broken = verify.rows_with_nan(batch, result)
        columns = zip(batch.rows, batch.sample_lens, tokens_by_row, drafts_by_row, strict=True)
        for at, (row, num_samples, tokens, drafts) in enumerate(columns):
            req, lease = row.req, row.lease
            had = len(req.output_ids)
            if req.lease is not lease:
                is_stale = row.deliver and self._is_stale(req)
                for token in tokens if is_stale else [None]:
                    if token is None or not req.finished:
                        outputs += self._late(batch, req, lease, token)
            elif row.deliver:
                verify.settle(req, num_samples - 1, len(tokens), drafts)
                for token in tokens:
                    if not req.finished:
                        outputs.append(self._deliver(req, lease, token))
            outputs += self._end_if_nan(batch, req, lease) if at in broken else []
            if at < batch.num_extend_reqs:
                self._cache_prompt(batch, at)
            if num_samples > 1 and (gained := len(req.output_ids) - had):
                self._verified(batch, req, num_samples - 1, gained - 1)
        if result.logprobs:
            deliver_logprobs(batch, result.logprobs, outputs, self.config.keep_stale_outputs)
        self._came_back(batch, drained, outputs)
        return outputs

    def _end_if_nan(self, batch: ScheduleBatch, req: Request, lease: Lease) -> list[Output]:
        """End one whose token was chosen from NaN; the other rows are as good as ever.

        After a chunk too: all that comes behind it would read what it has written.
        """
        if req.lease is not lease and not self._is_stale(req):
            return []
        if lease.is_spoiled:
            return []  # it was computed from nothing, and is computed again
        error = f"its logits are not numbers (NaN) in step {batch.step}."
        self._spoil([lease])
        return [self._finish(req, FinishReason.ERROR, error=error)]

    def _spoil(self, leases: Sequence[Lease]) -> None:
        """What a step was to write for these is not there; whoever reads it computes again."""
        if self.prefix_cache.unsettled is None:
            return  # nobody reads what has not come back
        self.prefix_cache.spoil(leases)
        for req in list(self.live.values()):
            if req.lease is not None and req.lease.is_spoiled and req.lease not in leases:
                self.retraction.retract(req, "failed prefix")

    def _verified(self, batch: ScheduleBatch, req: Request, drafts: int, accepted: int) -> None:
        """Say what became of a row's drafts (added up in ``checks/drafts.py``)."""
        self.recorder.mark(
            "verified", step=batch.step, rid=req.rid, drafts=drafts, accepted=accepted
        )

    def _deliver(self, req: Request, lease: Lease, token: int) -> Output:
        """A request learns its next token, and may end with it."""
        lease.settled_len = req.known_len
        req.append_host(token)
        if token in req.stop_ids or req.known_len == req.max_device_len or req.is_complete:
            return self._end(req, token)
        return Output(req.rid, token)

    def _came_back(
        self, batch: ScheduleBatch, drained: list[Request], outputs: list[Output]
    ) -> None:
        """Say what grammars have taken, and let those resume of whom nothing is stale now."""
        self.prefix_cache.came_back(batch.step)
        if batch.has_sampling_extras and self.recorder.is_on:
            record_accepted(self.recorder, batch, outputs)
        if self.prefix_cache.shares_outputs:
            self._cache_outputs(batch)
        for req in drained:
            if not req.finished:
                self.waiting_queue.add(req)

    def _cache_prompt(self, batch: ScheduleBatch, at: int) -> None:
        """Share the prompt, or the chunk, that a row has computed, if it still runs.

        Not a chunk, where that is for the next step to do (``PrefixCache.cache_chunk``), or for the
        last of its chunks (``policy/rules.py:chunks_enter``).
        """
        req, lease, rules = batch.reqs[at], batch.leases[at], self.config.in_force
        is_chunk = not batch.delivers[at]
        is_later = is_chunk and rules.enters_cache == "launched"
        if req.lease is not lease or self._has_let_go(lease) or is_later:
            return
        lease.settled_len = batch.starts[at] + len(batch.ids[at])
        if not (is_chunk and rules.chunks_enter == "whole_prompt"):
            self.prefix_cache.cache_unfinished_req(req, lease)

    def _cache_outputs(self, batch: ScheduleBatch) -> None:
        """Share what those have computed who decode, and still run."""
        first = batch.num_extend_reqs
        for req, lease in zip(batch.reqs[first:], batch.leases[first:], strict=True):
            if req.lease is lease and not self._has_let_go(lease):
                self.prefix_cache.cache_unfinished_req(req, lease)


# -- Turning a plan into a batch: from here on it is in flight -------------------------------------


def commit(state: SchedulerState, plan: Plan) -> ScheduleBatch:
    """Advance lengths, reserve pages, and freeze what is true now."""
    state.step += 1
    state.leases.launched_step = state.step
    state.batches_in_flight += 1
    batch = ScheduleBatch(state.step, mode_of(state, plan), len(plan.prompts))
    batch.has_sampling_extras = bool(state.wishing)
    if plan.prompts:
        evict_for_prompts(state, plan)
        for req, extend_len in plan.prompts:
            add_prompt(state, batch, req, extend_len)
        joining = zip(batch.reqs, batch.delivers, strict=True)
        ready = [req if done else ChunkedReq(req) for req, done in joining]
        mixed = state.config.enable_mixed_chunk and bool(plan.decodes)
        state.decode.add_reqs(ready, mixed)
        state.new_batch = batch
    if state.config.num_draft_tokens:
        add_verifies(state.leases, state.propose, batch, plan.decodes, plan.draft_lens)
    else:
        add_decodes(state, batch, plan.decodes)
    state.cur_batch = batch
    record_commit(state.recorder, batch)
    state.on_commit(batch)
    if state.config.keep_stale_outputs:
        stale_outputs.launched(batch)
    return batch


def record_commit(recorder: Recorder, batch: ScheduleBatch) -> None:
    """Say whose memory a step names from now on: the rows of the request table, in batch order.

    ``chunks`` are those of them whose sample is no token: the prompt goes on in a later step.
    """
    if recorder.is_on:
        rows = [lease.row for lease in batch.leases]
        chunks = [row for row, deliver in zip(rows, batch.delivers, strict=True) if not deliver]
        more = {"chunks": " ".join(map(str, chunks))} if chunks else {}
        recorder.mark("commit", step=batch.step, rows=" ".join(map(str, rows)), **more)


def mode_of(state: SchedulerState, plan: Plan) -> ForwardMode:
    """What the batch is: decodes that may carry drafts are there to be verified."""
    mode = plan.mode
    is_verify = mode is ForwardMode.DECODE and state.config.num_draft_tokens
    return ForwardMode.TARGET_VERIFY if is_verify else mode


def add_prompt(state: SchedulerState, batch: ScheduleBatch, req: Request, extend_len: int) -> None:
    """Advance a prompt by ``extend_len`` positions."""
    lease = req.lease
    assert lease is not None
    start, end = req.computed_len, req.computed_len + extend_len
    is_last = end == req.device_len
    batch.new_pages[len(batch.reqs)] = state.leases.extend(lease, end)
    state.prefix_cache.cache_scheduled_req(req, lease, end, batch.step)
    batch.reqs.append(req)
    batch.leases.append(lease)
    batch.starts.append(start)
    batch.ids.append(req.tokens(start, end))
    batch.delivers.append(is_last)
    wanted = next_logprob_at(req.params, len(req.prompt), len(req.input_token_logprobs))
    batch.extend_logprob_start_lens.append(min(max(0, wanted - start), extend_len))
    lease.last_step = batch.step
    lease.num_chunks += 1
    req.computed_len = end
    if is_last:
        req.device_len += 1  # the token that this step samples will exist


def evict_for_prompts(state: SchedulerState, plan: Plan) -> None:
    """Let the cache give up what prompts may take at most: a page more for each of them.

    SGLang ``mem_cache/allocation.py:alloc_paged_token_slots_extend``; with pages of one token
    nothing is estimated there.
    """
    if state.evicts_by_page:
        size = state.allocator.page_size
        tokens = sum(length + size for _, length in plan.prompts)
        state.leases.make_free(state.allocator.pages_for(tokens))


def add_decodes(state: SchedulerState, batch: ScheduleBatch, reqs: list[Request]) -> None:
    """Advance each by one position. Every running request passes here at every step."""
    page_size, step = state.allocator.page_size, batch.step
    if state.evicts_by_page:
        state.leases.make_free(len(reqs))  # a page for each, whether it needs one or not
    for index, req in enumerate(reqs, len(batch.reqs)):
        lease, start, end = req.lease, req.computed_len, req.device_len
        assert lease is not None
        if lease.sent_pages * page_size < end:
            batch.new_pages[index] = state.leases.extend(lease, end)
        lease.last_step = step
        batch.leases.append(lease)
        batch.starts.append(start)
        batch.ids.append((req.output_ids[-1] if start < req.known_len else None,))
        req.computed_len, req.device_len = end, end + 1
    batch.reqs += reqs
    batch.delivers += [True] * len(reqs)


class SchedulerStuck(RuntimeError):
    """Requests are left, nothing is in flight and nothing can be scheduled: a scheduler bug."""


class Scheduler(Results):
    """Decides what runs next and what a result means (SGLang ``managers/scheduler.py``).

    ``next_batch`` and ``chain`` *commit*: lengths advance to an upper bound, pages are reserved
    and every lease named is in flight until ``process`` takes the batch back. Every loop, however
    far ahead it runs, calls only these methods.
    """

    def __init__(self, config: SchedulerConfig, recorder: Recorder | None = None) -> None:
        super().__init__(config, recorder or NullRecorder())

    # -- requests come and go ------------------------------------------------------------------

    def receive(self, reqs: Iterable[Request]) -> list[Output]:
        """Queue new requests; one that can never run ends here, with its reason.

        A refusal is that request's alone. An id is in use from here to its request's end; then it
        may come back, also while a step in flight still has a row for the request that has ended.
        """
        outputs = []
        for req in reqs:
            problem = (
                self.config.refusal(req)
                or self._is_taken(req)
                or process_req_with_grammar(req, self.compile_grammar)
            )
            if problem:
                outputs.append(self._refuse(req, problem))
                continue
            record_grammar(self.recorder, req)
            self.num_received += 1
            model_stops = frozenset() if req.params.ignore_eos else self.config.eos_ids
            req.stop_ids = req.params.stop_token_ids | model_stops
            req.num_draft_tokens = self.config.num_draft_tokens
            if req.params.stop and self.listen is not None:
                req.hears_stop_string = self.listen(req.params.stop, self.config.late_stop_strings)
            self.live[req.rid] = req
            if req.params.has_sampling_extras:
                self.wishing.add(req.rid)
            self.waiting_queue.add(req)
        return outputs

    def abort(self, rid: str, error: str = "") -> list[Output]:
        """End a request wherever it is; an id that is not live is none of our business."""
        req = self.live.get(rid)
        return [self._finish(req, FinishReason.ABORT, error=error)] if req else []

    # -- what runs next ------------------------------------------------------------------------

    def next_batch(self) -> ScheduleBatch | NoBatch:
        """Commit the next batch, or say why there is none.

        Raises:
            SchedulerStuck: there are requests, but no result in flight could ever help.
        """
        if self.batches_in_flight == 0 or not self.decode.running_reqs:
            self.retraction.starved = False
        if (chunked := self.prefill.chunked_req) is not None:
            self.prefix_cache.cache_chunk(chunked.req)
        plan = self.run_first.plan()
        if plan.prompts or plan.decodes:
            return commit(self, plan)
        self._give_up_hopeless()
        if not self.live:
            if not self.batches_in_flight:
                self.new_token_ratio.reset()
            return NoBatch.IDLE
        if not (self.batches_in_flight or self.outbox or self.awaits_others):
            left = len(self.live)
            stuck = "1 request is" if left == 1 else f"{left} requests are"
            raise SchedulerStuck(f"nothing can run, yet {stuck} not done")
        return NoBatch.WAIT

    def can_chain(self, batch: ScheduleBatch) -> bool:
        """Whether ``batch`` may be committed once more as it is, without scheduling.

        It is a decode batch whose composition is still right: nobody waits, nobody ended, every
        row may run and has room (SGLang ``hardware_backend/mlx/scheduler_mixin.py``).
        """
        if self.waiting_queue or self.prefill.chunked_req:
            return False
        return batch.reqs == self.decode.running_reqs and self.can_repeat(batch)

    def chain(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Commit the rows of a decode batch once more, of which ``can_chain`` has said yes."""
        return commit(self, Plan([], batch.reqs))

    def can_repeat(self, batch: ScheduleBatch) -> bool:
        """Whether a decode batch may run once more, whoever waits: all of it lives and has room."""
        reqs = batch.reqs
        if batch.num_extend_reqs or batch.anyone_left:
            return False
        has_room = all(req.device_len <= self.config.row_len for req in reqs)
        may_run = all(map(self.decode.may_run, reqs))
        return has_room and may_run and self.retraction.pages_short(reqs) <= 0

    def repeat(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        """Commit the same rows once more, deaf to all that wait (multi-step scheduling)."""
        return commit(self, Plan([], batch.reqs)) if self.can_repeat(batch) else None

    def take_outputs(self) -> list[Output]:
        """What ``next_batch`` had to say to clients."""
        outputs, self.outbox = self.outbox, []
        return outputs
