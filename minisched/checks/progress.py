"""Two laws of scheduling, *progress* and *order*: runnable requests run, and in policy order.

An observer checks each decision of a scheduler. It reads only public state: the requests, the
settings and the free memory. ``admission.py`` and ``formulas.py`` compute rules a second time.
``minisched fidelity`` checks the numbers of each rule against its original's code. These two laws
hold under every rule, for every loop.

*Progress.* A running request is in the next step under two conditions: the host knows its next
token (or need not), and its length leaves room. Exceptions: prompts go first, the step's budget is
spent, or memory is short. A prompt in chunks continues as far as budget and memory allow. The first
waiting request is admitted if memory surely suffices, whatever the others may still generate
(``Decision.room``). Exceptions: no row is free, the budget may be spent, or another prompt is in
chunks; decodes go first or wait for memory; or the request was refused and nothing has changed
since. A burst of ``multi_step`` decides nothing until its steps are over. No more steps are in
flight than the loop's depth. Each request that has not ended is in some list of the scheduler.

*Order.* Decodes are in a step in the order in which their prompts ended. The admitted requests are
the first of the queue, if its order looks at the requests alone and not at the cache. No request is
admitted next to a prompt that could not end, or while a running request starves. The rule decides
which request loses its memory, and only if memory is short. A request of higher priority takes
memory only from lower ones, and from no more of them than it needs. On the decode side of ``pd``
pages are reserved first come, first served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil, inf
from typing import TypeVar

from ..core import Lease, NoBatch, Request, Row, ScheduleBatch
from ..engine.engine import Engine
from ..memory import LeasePool
from ..policy.admission import Work
from ..policy.waiting import CACHE_AWARE, is_held
from ..scheduler import Scheduler
from ..scheduler.pd import DecodeScheduler, PrefillScheduler
from .admission import PassWatch
from .formulas import ExpectedRatio, wrong_cuts
from .history import many
from .prefix_audit import pages_locked_once

B = TypeVar("B", ScheduleBatch, ScheduleBatch | NoBatch)

ORDERS: dict[str, Callable[[Request], int]] = {
    "fcfs": lambda req: 0,
    "priority": lambda req: 0,  # first come, first served among equals
    "random": lambda req: 0,
    "lof": lambda req: -req.params.max_new_tokens,
    "lpm": lambda req: 0,  # without a tree, as is ``dfs-weight``
    "dfs-weight": lambda req: 0,
}
"""The queue orders that the law knows, written a second time: the least goes first.
The law ``order`` does not judge another order."""

SCHEDULERS = (Scheduler, PrefillScheduler, DecodeScheduler)
"""Schedulers with rules that the laws know. Neither law judges the decisions of another one."""


class Watched:
    """Judge one scheduler: wrap its public methods before its engine starts.

    ``findings`` receives the first sentence that breaks either law, by the law's name. ``unknown``
    receives the reason by law where a law does not know the rules in force. The state that later
    decisions need is kept here; one decision is a ``Decision``.
    """

    def __init__(self, engine: Engine, findings: dict[str, str], unknown: dict[str, str]) -> None:
        self.scheduler, self.depth, self.findings = engine.scheduler, engine.worker.depth, findings
        self.unknown = unknown
        unknown |= unknown_rules(engine.scheduler)
        self.places: dict[Request, int] = {}  # place of each request in the order of arrival
        self.num_added = 0
        self.running: list[Request] = []  # in the order in which their prompts ended
        self.starving: Request | None = None  # runnable, and waits for memory that is being freed
        self.refused_at: set[int] = set()  # counts of releases of memory at each refusal
        self.repeats = 0  # steps of a burst after its first
        self.decision: Decision | None = None  # during a decision
        self.passes = PassWatch(self.scheduler)
        self.listen()
        if isinstance(engine.scheduler, DecodeScheduler):
            self.listen_to_reservations(engine.scheduler)

    @property
    def step(self) -> int:
        """Return the number of the last step committed."""
        return self.scheduler.leases.launched_step

    def listen(self) -> None:
        """Wrap the callbacks for arrivals, decisions and retractions."""
        scheduler, retraction = self.scheduler, self.scheduler.retraction
        add, retract = scheduler.waiting_queue.add, retraction.retract
        next_batch, chain, commit = scheduler.next_batch, scheduler.chain, scheduler.commit

        def added(req: Request) -> None:
            """Record an arrival in the queue; a retracted request may keep its place."""
            has_place = (
                scheduler.config.in_force.retracted_waits == "old_place"
                and req.admission.retractions
            )
            if not (is_held(req) or has_place):
                self.places[req] = self.num_added
                self.num_added += 1
            add(req)

        def decided() -> ScheduleBatch | NoBatch:
            """Judge the decision on the next step."""
            if scheduler.batches_in_flight == 0 or not scheduler.running_batch:
                self.starving = None
            self.repeats = 0
            return self.judged(next_batch)

        def chained(batch: ScheduleBatch) -> ScheduleBatch:
            """Judge a chained step of the same requests: no request may be waiting."""
            chunked = scheduler.prefill.chunked_req
            asked = [req.rid for req in (*scheduler.waiting_queue, chunked) if req is not None]
            again = self.judged(lambda: chain(batch), repeats=True)
            self.keep("progress", (f"{rid} waits, and is not asked whether it may be in step "
                                   f"{self.step}" for rid in asked))  # fmt: skip
            return again

        def committed(prompts: Work, decodes: list[Request]) -> ScheduleBatch:
            """Check a burst, which continues without a decision: it has a longest length."""
            batch, most = commit(prompts, decodes), scheduler.decode.overrun
            self.repeats += self.decision is None
            if self.decision is None and self.repeats > most:
                self.keep("progress", [
                    f"step {batch.step} is the {self.repeats}th in a row without a "
                    f"decision, but a burst has at most {most} of them"
                ])  # fmt: skip
            return batch

        def retracted(req: Request, reason: str) -> None:
            """Check a retraction: the request that the rule names, and only if memory is short."""
            if (decision := self.decision) is not None:
                wrong = decision.not_lower if reason == "priority" else decision.not_the_one
                self.keep("order", wrong(req))
            self.passes.line = None
            if reason == "failed prefix":
                self.keep("order", self.not_spoiled(req))
            if reason == "priority":
                self.passes.preempted(req)
            retract(req, reason)
            if decision is not None:
                decision.lost(req, reason)

        scheduler.waiting_queue.add, retraction.retract = added, retracted  # type: ignore[method-assign]
        scheduler.next_batch, scheduler.chain = decided, chained  # type: ignore[method-assign]
        scheduler.commit = committed  # type: ignore[method-assign]

    def judged(self, decide: Callable[[], B], repeats: bool = False) -> B:
        """Let the scheduler decide, or repeat a step, and apply the laws to the result."""
        scheduler = self.scheduler
        now = scheduler.running_batch  # includes requests prefilled on the other side of ``pd``
        self.running = [req for req in self.running if req in now]
        self.running += [req for req in now if req not in self.running]
        decision = self.decision = Decision(self, repeats)
        num_live = len(scheduler.live)
        self.passes.begin(list(decision.waiting))
        batch = decide()
        self.decision = None
        self.keep("progress", self.lost_sight_of())
        if batch and (in_flight := scheduler.batches_in_flight) > self.depth:
            self.keep("progress", [
                f"with step {self.step} there are {in_flight} steps in flight, but the loop "
                f"has at most {self.depth}"
            ])  # fmt: skip
        decision.came_to(batch)
        self.keep("record", self.passes.marked)
        is_known = decision.is_unified and batch and not decision.retracted
        num_decodes = len(decision.decodes) if is_known else None
        self.keep("record", self.passes.admissions(decision.prompts, num_decodes))
        self.keep("record", [] if repeats else self.passes.refusals())
        if len(scheduler.live) == num_live:  # otherwise an abort has changed the state
            self.keep("progress", decision.left_out())
            self.keep("progress", decision.by_formulas())
            self.keep("order", decision.out_of_order())
        self.keep("progress", decision.starves_on())
        if decision.prompts and decision.decodes and not decision.is_unified:
            self.passes.mixed()
            self.keep("order", decision.mixed_wrongly())
        self.keep("progress", [*self.passes.found, *self.passes.closed_queue()])
        self.keep("order", self.passes.misplaced)
        done = [req for req, row in decision.prompts.items() if row.deliver]
        done = [req for req in done if req not in self.running]
        is_mixed = bool(decision.decodes) and scheduler.config.enable_mixed_chunk
        self.running = done + self.running if is_mixed else self.running + done
        return batch

    def keep(self, law: str, found: Iterable[str]) -> None:
        """Keep the first finding of a law that knows the rules in force."""
        for sentence in found if law not in self.unknown else ():
            self.findings.setdefault(law, sentence)

    def not_spoiled(self, req: Request) -> Iterator[str]:
        """Yield a request that is computed again, but can't have read pages of a failed step."""
        failed, lease = self.scheduler.leases.returned_step, req.lease
        if lease is None or not req.admission.hit_len or lease.last_step < failed:
            yield (
                f"{req.rid} is computed again after step {failed} has failed, but it can't have "
                "read pages that this step should have written"
            )

    def lost_sight_of(self) -> Iterator[str]:
        """Yield the requests that have not ended and are in no list."""
        scheduler, chunked = self.scheduler, self.scheduler.prefill.chunked_req
        known = {*scheduler.waiting_queue, *scheduler.running_batch}
        known |= {chunked} if chunked else set()
        if isinstance(scheduler, PrefillScheduler):
            known |= {*scheduler.bootstrap_queue.values()}
        if isinstance(scheduler, DecodeScheduler):
            known |= {*scheduler.unanswered.values()}
        for req in scheduler.live.values():
            is_early = req.lease is not None and req.lease.is_released  # its last step is launched
            if req not in known and not is_early:
                yield f"{req.rid} has not ended, but neither waits nor runs after {self.step}"
        waiting = [*scheduler.waiting_queue]
        for req in waiting if len({*waiting}) < len(waiting) else ():
            if waiting.count(req) > 1:
                yield f"{req.rid} is in the queue more than once after step {self.step}"

    def listen_to_reservations(self, scheduler: DecodeScheduler) -> None:
        """Wrap the reservation of pages on the decode side of ``pd``: first come, first served."""
        pop_preallocated, table = scheduler.pop_preallocated, scheduler.table

        def popped() -> list[tuple[Request, Lease]]:
            """Follow requests that leave the queue of the decode side."""
            queue, found = list(scheduler.prealloc_queue.values()), pop_preallocated()
            taken = [req for req, _ in found]
            left = [req for req in queue if req not in taken]
            self.keep("order", (
                f"{req.rid} gets its pages before {other.rid}, which asked for them earlier"
                for req in taken
                for other in queue[: queue.index(req)]
                if other in left
            ))  # fmt: skip
            need = [scheduler.allocator.pages_for(req.max_device_len) for req in left[:1]]
            can = scheduler.allocatable_pages
            self.keep("progress", (
                f"{left[0].rid} gets no pages, when {table.available_size} of {table.size} rows "
                f"are free, and it needs {many(pages, 'page')}, when {can} can be reserved"
                for pages in need
                if pages <= can and table.available_size
            ))  # fmt: skip
            return found

        scheduler.pop_preallocated = popped  # type: ignore[method-assign]


class Decision:
    """One decision of a scheduler: the state before, the retracted requests, and the result."""

    def __init__(self, watched: Watched, repeats: bool) -> None:
        self.watched, self.scheduler, self.repeats = watched, watched.scheduler, repeats
        scheduler, self.leases = self.scheduler, self.scheduler.leases
        self.config, self.rules = scheduler.config, scheduler.config.in_force
        self.is_unified = self.rules.run_first == "unified"
        policy = self.config.schedule_policy
        self.by_priority = self.config.enable_priority_scheduling or policy == "priority"
        self.running, self.was_starving = list(watched.running), watched.starving
        self.ready = [  # the running requests that are runnable
            req
            for req in self.running
            if req.device_len < req.max_device_len + scheduler.decode.overrun
            and (self.config.run_ahead or req.computed_len < req.known_len)
        ]
        self.chunked = scheduler.prefill.chunked_req
        queue = scheduler.waiting_queue
        self.waiting = [req for req in queue if not is_held(req)]  # admissible
        self.kept = {req: self._kept_back(req) for req in self.running}
        self.num_released, self.available = self.leases.num_released, self.leases.available_pages
        self.retracted, self.made_way = list[Request](), list[Request]()
        self.prompts: dict[Request, Row] = {}
        self.ratio = scheduler.new_token_ratio.current

    def lost(self, req: Request, reason: str) -> None:
        """Record that a request has lost its memory and waits."""
        self.retracted.append(req)
        self.made_way += [req] * (reason == "priority")
        self.waiting += [] if is_held(req) else [req]

    def came_to(self, batch: ScheduleBatch | NoBatch | None) -> None:
        """Record the result: the committed step, or none."""
        rows = batch.rows if isinstance(batch, ScheduleBatch) else ()
        first = batch.num_extend_reqs if isinstance(batch, ScheduleBatch) else 0
        self.prompts = {row.req: row for row in rows[:first]}
        self.decodes = [row.req for row in rows[first:]]
        self.admitted = [row.req for row in rows[:first] if row.start == row.req.admission.hit_len]
        self.waiting = [req for req in self.waiting if req in self.scheduler.waiting_queue]
        req = None if self.chunked in self.retracted else self.chunked
        goes_on = req is not None and not (req in self.prompts and self.prompts[req].deliver)
        self.in_chunks = req if goes_on else None  # the request with an unfinished prompt

    # -- lower bounds of the free memory: never more than the rules would count --------------------

    def _kept_back(self, req: Request) -> float:
        """Return the tokens that are reserved for a running request's remaining output.

        If the rule reserves the rest of each request, tokens in flight are no part of it. So none
        are reserved for a request that is ending.
        """
        if self.reserves_nothing:
            return 0
        if self.rules.reserves == "rest":
            left, spare = req.max_device_len - req.device_len, self.config.page_size - 1
            return left + spare + self.is_unified if left > 0 else 0  # whole pages under one budget
        if req.params.ignore_eos:
            return self._rest(req)
        return self._rest(req) * self.scheduler.new_token_ratio.current

    @property
    def reserves_nothing(self) -> bool:
        """Return whether a new request needs pages for its prompt alone.

        One budget reserves nothing, unless the rules reserve the rest of each request.
        """
        reserves = self.rules.reserves
        return reserves == "prompt" or (self.is_unified and reserves != "rest")

    def _rest(self, req: Request) -> int:
        """Return a request's remaining tokens, plus the unused rest of a page."""
        return max(0, req.params.max_new_tokens - len(req.output_ids)) + self.config.page_size

    def room(self, req: Request) -> float:
        """Return the tokens of memory left for one more request, at the highest charges.

        For a request that ignores EOS without a prefix cache, rules may count all remaining tokens.
        """
        size, kept, prompts = self.config.page_size, self.kept, self.prompts
        if req.params.ignore_eos and self.config.disable_radix_cache and not self.is_unified:
            kept = {one: self._rest(one) for one in kept}
        asked_first = not (prompts or self.is_unified)  # before other requests took their pages
        pages = self.available if asked_first else self.leases.available_pages
        free = pages * size - len(kept) * self.config.enable_mixed_chunk - sum(kept.values())
        for one, row in prompts.items() if not self.reserves_nothing else ():
            free -= one.known_len - row.end + one.params.max_new_tokens + 2 * size
        return free

    def need(self, req: Request) -> float:
        """Return the most tokens that admission may need, whatever is cached; more must be free.

        Rules that reserve the rest of each request admit one that takes the last free token.
        """
        size = self.config.page_size
        if self.rules.reserves == "rest" and not self.is_unified:
            new = req.params.max_new_tokens - len(req.output_ids)
            return max(req.known_len + new, ceil(req.known_len / size) * size) - 1
        prompt = (ceil(req.known_len / size) + 1) * size
        return prompt if self.reserves_nothing else prompt + req.params.max_new_tokens

    @property
    def budget(self) -> float:
        """Return the tokens that this step surely has left for prompts, each in whole pages."""
        size, config = self.config.page_size, self.config
        chunk = inf if config.chunked_prefill_size == -1 else config.chunked_prefill_size
        paid = sum(ceil(len(row.ids) / size) * size for row in self.prompts.values())
        if self.is_unified:
            each = 1 + config.num_draft_tokens
            return config.prefill_budget - len(self.decodes) * each - paid
        mixed = len(self.running) if config.enable_mixed_chunk else 0
        return min(config.max_prefill_tokens, chunk) - mixed - paid

    # -- progress ----------------------------------------------------------------------------------

    def left_out(self) -> Iterator[str]:
        """Yield the requests that could be in the step and are not."""
        watched, leases = self.watched, self.leases
        still_ready = [req for req in self.ready if req not in self.retracted]
        missing = [req for req in still_ready if req not in self.decodes]
        yield from self._of_one_budget(missing) if self.is_unified else self._of_running(missing)
        others_first = self.rules.run_first == "decode" and bool(self.decodes)
        if self.made_way and not (self.admitted or leases.returning):  # the memory is available
            self.kept = {req: kept for req, kept in self.kept.items() if req not in self.retracted}
            watched.refused_at = set()
            yield from self._of_waiting() if self.waiting and not self.in_chunks else ()
        elif self.retracted:  # the first in the queue may have been refused before and after
            watched.refused_at = {self.num_released, leases.num_released}
        elif self.was_starving or watched.starving or others_first:
            return
        elif (req := self.in_chunks) is not None:
            assert req.lease is not None
            lacking = leases.pages_lacking(req.lease, req.known_len)
            if req not in self.prompts and lacking <= leases.available_pages and self.budget > 0:
                yield (
                    f"{req.rid} has come to position {req.computed_len} of its prompt, with memory "
                    f"for all of it, and {self._not}"
                )
        elif self.waiting:
            yield from self._of_waiting()

    def starves_on(self) -> Iterator[str]:
        """Yield a step of decodes after which prompts wait as if it lacked memory."""
        is_decided = bool(self.decodes) and not (self.is_unified or self.repeats)
        if is_decided and self.scheduler.retraction.starved:
            yield f"step {self.watched.step} has its memory, but prompts still wait for that"

    def mixed_wrongly(self) -> Iterator[str]:
        """Yield a request with log-probabilities in a step of prompts and decodes (SGLang)."""
        for req in (*self.prompts, *self.decodes):
            if req.params.return_logprob:
                yield f"{req.rid} wants log-probabilities, but step {self.watched.step} is mixed"

    def by_formulas(self) -> Iterator[str]:
        """Yield the numbers that differ from the formulas of the rules (``formulas.py``)."""
        config, step, of_rules = self.config, self.watched.step, ExpectedRatio(self.config)
        now, has_preempted = self.scheduler.new_token_ratio.current, bool(self.made_way)
        is_idle = not (self.scheduler.live or self.scheduler.batches_in_flight)
        expected = [of_rules.start if is_idle else self.ratio]
        if self.decodes and not (self.prompts or self.is_unified or self.repeats):
            expected = [of_rules.decayed(self.ratio)]
        if self.retracted and not (self.is_unified or has_preempted):
            estimate = of_rules.estimated(set(self.running).difference(self.retracted))
            expected = [estimate, of_rules.decayed(estimate)]
        yield from of_rules.wrong(self.ratio, now, expected, step) if not has_preempted else ()
        if self.is_unified and not (config.num_draft_tokens or self.retracted):
            left = config.prefill_budget - len(self.decodes)
            yield from wrong_cuts(self.prompts, self.chunked, left)

    def _of_running(self, missing: Sequence[Request]) -> Iterator[str]:
        """Check a step of decodes: all runnable ones are in it; next to prompts all or none."""
        watched, leases = self.watched, self.leases
        if self.decodes:
            watched.starving = None
        if not missing:
            return
        need = sum(
            leases.pages_lacking(req.lease, leases.reach(req)) for req in missing if req.lease
        )
        is_short = need > leases.available_pages and not self.decodes
        if not self.prompts and is_short:
            is_alone = len(self.scheduler.running_batch) + bool(self.chunked) <= 1
            comes_back = need <= leases.available_pages + pages_coming(leases)
            if is_alone or comes_back or not self.about_to_end:
                watched.starving = missing[0]
        elif self.prompts and not self.decodes and self.rules.run_first == "prefill":
            alone = any(req.params.return_logprob for req in [*self.ready, *self.prompts])
            if self.config.enable_mixed_chunk and not (is_short or alone):  # SGLang mixes no batch
                yield self._may_run(missing[0])
        else:
            yield self._may_run(missing[0])

    def _of_one_budget(self, missing: Sequence[Request]) -> Iterator[str]:
        """Check a shared budget: requests in order until it is spent; one without memory waits."""
        left = self.budget + sum(len(row.ids) for row in self.prompts.values())
        self.watched.starving = next(iter(missing), None) if left > 0 else None
        for req in missing if left > 0 and not self.retracted else ():
            lacking = (
                self.leases.pages_lacking(req.lease, self.leases.reach(req)) if req.lease else inf
            )
            if lacking <= self.leases.available_pages:
                yield self._may_run(req)

    def _of_waiting(self) -> Iterator[str]:
        """Check that the first waiting request, or one of several, has a reason to wait."""
        watched, table, size = self.watched, self.leases.table, self.config.page_size
        first = min(map(self.turn_of, self.waiting))
        heads = [req for req in self.waiting if self.turn_of(req) == first]
        preempts = self.by_priority and not self.is_unified and not self.leases.returning
        may_have_a_row = preempts and any(self.outranks(heads[0], req) for req in self.running)
        lacks_memory = any(self.need(req) >= self.room(req) for req in heads)
        if lacks_memory or not (table.available_size or may_have_a_row):
            watched.refused_at = {self.num_released, self.leases.num_released}
            return
        is_full = self.leases.num_released in watched.refused_at and self.rules.ask_again == "left"
        least = max(ceil(req.known_len / size) * size + 1 for req in heads)
        if not (is_full or self.budget < (least if self.prompts else size)):
            yield (
                f"{heads[0].rid} waits and is first in the queue, and "
                f"{'it ' if self.prompts or self.decodes else ''}{self._not}; "
                f"{table.available_size} of {table.size} rows are free, and "
                f"{self.leases.available_pages} of {self.config.num_pages} pages are available"
            )

    def _may_run(self, req: Request) -> str:
        token = "is known" if req.computed_len < req.known_len else "need not be known"
        rows, most = len(self.prompts) + len(self.decodes), self.config.max_running_requests
        return f"{req.rid} may run (its token {token}, {rows} of {most} rows used) and {self._not}"

    @property
    def _not(self) -> str:
        some, step = self.prompts or self.decodes, self.watched.step
        return f"is not in step {step}" if some else f"nothing runs after step {step}"

    # -- order -------------------------------------------------------------------------------------

    def turn_of(self, req: Request) -> tuple[int, ...]:
        """Return the place in the queue's order: the least goes first.

        All requests are alike if the order looks at the cache, or the law does not know it.
        """
        policy = self.config.schedule_policy
        looks_at_cache = policy in CACHE_AWARE and self.scheduler.tree is not None
        if policy == "random" or policy not in ORDERS or looks_at_cache:
            return ()
        place = self.watched.places[req]
        return -req.priority if self.by_priority else 0, ORDERS[policy](req), place

    def out_of_order(self) -> Iterator[str]:
        """Yield the requests that are in the step before others, wrongly, after ``left_out``."""
        step, policy = self.watched.step, self.config.schedule_policy
        for one, other in pairwise(self.decodes):
            if self.running.index(one) > self.running.index(other):
                yield f"{one.rid} is in step {step} before {other.rid}, which ran before it"
        starving = self.watched.starving if self.is_unified else self.was_starving
        for at, req in enumerate(self.admitted):
            admitted = f"{req.rid} is admitted in step {step}"
            for other in [*self.waiting, *self.admitted[at + 1 :]]:
                if self.turn_of(other) < self.turn_of(req):
                    yield f"{admitted} before {other.rid}, which by {policy} goes first"
            if self.in_chunks:
                yield f"{admitted} before the prompt of {self.in_chunks.rid} is done"
            if starving and starving in self.ready:
                yield f"{admitted}, when {starving.rid} may run and waits for memory"
            if self.is_unified and self.retracted:
                yield f"{admitted}, when {words(self.retracted)} had to make way for others"

    def not_the_one(self, req: Request) -> Iterator[str]:
        """Yield what is wrong with a retraction of ``req`` now, for lack of pages.

        A prompt in chunks goes first, because it has generated nothing yet; then the request that
        the rules name. If free memory plus memory on its way back suffices for all ready requests,
        none may be retracted. Otherwise requests would be retracted in turn, for ever (vllm-ascend
        #16315). The same holds while a request is about to end and free its memory.
        """
        scheduler, leases, chunked = self.scheduler, self.leases, self.scheduler.prefill.chunked_req
        here = [one for one in self.running if one in scheduler.running_batch]
        if chunked is not None:
            named, rule = chunked, "the one with a prompt in chunks"
        elif self.is_unified or self.rules.victim == "newest":
            named, rule = here[-1], "the newest"
        else:
            loss = {one: (len(one.output_ids), -len(one.prompt)) for one in here}
            named = min(reversed(here), key=loss.__getitem__)
            outputs = many(len(named.output_ids), "output")
            rule = f"with {outputs} and a prompt of {many(len(named.prompt), 'token')}"
            if req is not named and loss.get(req) == loss[named]:
                rule += ", too, and began to decode last"
        victim = f"after step {self.watched.step} {req.rid} is retracted"
        if req is not named:
            yield f"{victim}, but the rule names {named.rid}, {rule}"
        asks = [
            (one.lease, self.leases.reach(one)) for one in self.ready if one not in self.retracted
        ]
        if self.is_unified and chunked is not None:
            left = min(chunked.extend_len, self.config.prefill_budget - len(asks))
            asks.append((chunked.lease, chunked.computed_len + left))
        need = sum(leases.pages_lacking(lease, reach) for lease, reach in asks if lease)
        coming = pages_coming(leases)
        if need <= leases.available_pages + coming:
            yield (
                f"{victim}, when the next step needs {many(need, 'page')}: "
                f"{leases.available_pages} are available, and {coming} more once "
                "the steps in flight return"
            )
        if not self.is_unified and self.about_to_end:
            yield f"{victim}, when {words(self.about_to_end)} will end with a step in flight"

    def not_lower(self, req: Request) -> Iterator[str]:
        """Yield what is wrong with a retraction of ``req`` for a request of higher priority."""
        step = self.watched.step
        victim = f"after step {step} {req.rid} (priority {req.priority}) is preempted"
        heads = [one for one in self.waiting if one.lease is None]
        highest = max(heads, key=lambda one: one.priority)
        if self.leases.returning and not self.made_way:
            yield f"{victim}, when {many(len(self.leases.returning), 'row')} will be released"
        if not self.outranks(highest, req):
            yield f"{victim}, but no waiting request has a priority that is high enough"
        places = self.watched.places
        line = {one: (one.priority, -places[one]) for one in self.scheduler.running_batch}
        if lower := [one for one in line if line[one] < line[req]]:
            yield f"{victim}, but the rule names {lower[0].rid} (priority {lower[0].priority})"
        if self.made_way and len(heads) == len(self.waiting):  # no request has come before
            given = sum(self.kept[one] for one in self.made_way)  # SGLang's rules count no more
            if self.room(highest) + given >= self.need(highest):
                yield f"{victim}, too, when there is room for {highest.rid}"

    def outranks(self, one: Request, other: Request) -> bool:
        """Return whether ``one`` has enough priority to take the memory of ``other``."""
        least = self.config.priority_scheduling_preemption_threshold
        return one.priority - other.priority > least

    @property
    def about_to_end(self) -> list[Request]:
        """Return the running requests with all their steps launched: their result is the last."""
        most, running = self.scheduler.decode.overrun, self.scheduler.running_batch
        return [req for req in running if req.device_len >= req.max_device_len + most]


def pages_coming(leases: LeasePool) -> int:
    """Return the pages that closed leases release: their own, and cached ones that they alone lock.

    It is ``LeasePool.pages_returning``, counted a second time.
    """
    found = 0
    for lease in leases.returning:
        found += len(lease.pages) - lease.shared_pages + pages_locked_once(lease.node)
    return found


def unknown_rules(scheduler: Scheduler) -> dict[str, str]:
    """Return, by law, why it does not know a scheduler's rules; empty if it knows them."""
    if type(scheduler) not in SCHEDULERS:
        decides = f"does not know the rules of the scheduler {type(scheduler).__name__}"
        return {law: f"the law {law} {decides}" for law in ("progress", "order")}
    policy = scheduler.config.schedule_policy
    if policy in ORDERS:
        return {}
    return {"order": f"the law order does not know {policy}; teach it in checks/progress.py"}


def words(reqs: Sequence[Request]) -> str:
    """Return their ids."""
    return " and ".join(req.rid for req in reqs)
