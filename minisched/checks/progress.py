"""Progress and order: who may run runs, or there is a reason; and nobody goes before their turn.

An observer that looks on at every decision of a scheduler. It reads what anybody may read: the
requests, the settings, what memory is left. It knows none of the policies' formulas. Whether each
rule counts as its original does is held against the original's own code (``minisched fidelity``);
here are the laws that hold under every rule, for every loop.

*Progress.* A running request is in the next step if the host knows its next token, or need not,
and there is room within its length: unless prompts go first, the budget of a step is spent, or
memory does not reach. A prompt in chunks goes on as far as budget and memory go. The first who
waits is admitted where memory surely reaches, whatever everybody may still say
(``Decision.room``): unless no row is free, the budget may be spent, another prompt is in chunks,
those who decode go first or wait for memory, or it was refused and nothing has changed since. A
burst of ``multi_step`` is deaf to all this for as many steps as it has. No more steps are in flight
than the loop's depth, and who has not ended is never lost sight of.

*Order.* Those who decode are in a step as their prompts were done. Those admitted are the first in
the queue, where its order looks at the requests alone, and not at the cache. Nobody is admitted
beside a prompt that could not end, or while somebody starves. Who loses their memory is the one
whom the rule names, and only where memory does not reach; to somebody of higher priority only those
who are lower do, and no more of them than it takes. On the decode side of ``pd`` pages are reserved
first come, first served.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf

from ..core import Lease, NoBatch, Request, ScheduleBatch
from ..engine.engine import Engine
from ..policy.waiting import CACHE_AWARE
from ..scheduler.pd import DecodeScheduler, PrefillScheduler
from .history import counted

Key = tuple[int, ...]  # who has the least goes first


@dataclass
class Before:
    """What was true when a scheduler was asked for its next step, and who lost memory since."""

    running: list[Request]  # in the order in which their prompts were done
    ready: list[Request]  # those of them that may run
    chunked: Request | None
    waiting: list[Request]  # who could be admitted
    kept: dict[Request, float]  # tokens of memory kept back for each who runs
    starving: Request | None  # may run, and waits for memory on its way back
    num_released: int  # leases so far
    available: int  # pages
    num_live: int
    retracted: list[Request] = field(default_factory=list)
    made_way: list[Request] = field(default_factory=list)  # of them, for a higher priority


class Watched:
    """One scheduler, whose public methods are listened to from before its engine starts.

    ``findings`` gets the first sentence that breaks either law, by the law's name.
    """

    def __init__(self, engine: Engine, findings: dict[str, str]) -> None:
        self.scheduler, self.depth, self.findings = engine.scheduler, engine.worker.depth, findings
        self.config, self.rules = self.scheduler.config, self.scheduler.config.in_force
        self.leases = self.scheduler.leases
        self.places: dict[Request, int] = {}  # in which order they came to wait
        self.num_added = 0
        self.running: list[Request] = []  # in which order their prompts were done
        self.starving: Request | None = None
        self.refused_at: set[int] = set()  # by how often memory had gone back by then
        self.repeats = 0  # steps of a burst behind its first
        self.before: Before | None = None  # while it decides
        self.listen()
        if isinstance(engine.scheduler, DecodeScheduler):
            self.listen_to_reservations(engine.scheduler)

    def listen(self) -> None:
        """Hear who comes, what is decided, and who loses memory."""
        scheduler, retraction = self.scheduler, self.scheduler.retraction
        add, retract = scheduler.waiting_queue.add, retraction.retract
        next_batch, chain, repeat = scheduler.next_batch, scheduler.chain, scheduler.repeat

        def added(req: Request) -> None:
            """Somebody comes to wait; a retracted one may keep its place."""
            keeps_place = self.rules.retracted_waits == "old_place" and req.retractions
            if not (req.num_stale_output_tokens or keeps_place):
                self.places[req] = self.num_added
                self.num_added += 1
            add(req)

        def decided() -> ScheduleBatch | NoBatch:
            """The next step is decided, and judged."""
            if scheduler.batches_in_flight == 0 or not scheduler.running_batch:
                self.starving = None
            self.before, self.repeats = self.look(), 0
            batch = next_batch()
            self._judge(self.before, batch or None)
            return batch

        def chained(batch: ScheduleBatch) -> ScheduleBatch:
            """A step of the same requests follows at once, and is judged."""
            before, again = self.look(), chain(batch)
            self._judge(before, again, is_chained=True)
            return again

        def repeated(batch: ScheduleBatch) -> ScheduleBatch | None:
            """A burst goes on without asking: not for longer than it may."""
            again, most = repeat(batch), scheduler.decode.overrun
            self.repeats += again is not None
            if again and self.repeats > most:
                self._keep("progress", [
                    f"step {again.step} is the {self.repeats}th in a row that asks nobody else, "
                    f"but a burst has at most {most} of them"
                ])  # fmt: skip
            return again

        def retracted(req: Request, reason: str) -> None:
            """Somebody loses their memory: the one whom the rule names, and for want of it."""
            if (before := self.before) is None:
                retract(req, reason)
                return
            for_priority = reason == "priority"
            wrong = self._not_lower if for_priority else self._not_the_one
            self._keep("order", wrong(req, before))
            retract(req, reason)
            before.retracted.append(req)
            before.made_way += [req] * for_priority
            if not req.num_stale_output_tokens:
                before.waiting.append(req)

        scheduler.waiting_queue.add, retraction.retract = added, retracted  # type: ignore[method-assign]
        scheduler.next_batch, scheduler.chain = decided, chained  # type: ignore[method-assign]
        scheduler.repeat = repeated  # type: ignore[method-assign]

    def look(self) -> Before:
        """What is true now."""
        scheduler = self.scheduler
        now = scheduler.running_batch  # whose prompt was done elsewhere (``pd``) is new here
        self.running = [req for req in self.running if req in now]
        self.running += [req for req in now if req not in self.running]
        ready = [
            req
            for req in self.running
            if req.device_len < req.max_device_len + scheduler.decode.overrun
            and (self.config.run_ahead or req.computed_len < req.known_len)
        ]
        waiting = [req for req in scheduler.waiting_queue if not req.num_stale_output_tokens]
        return Before(
            list(self.running), ready, scheduler.prefill.chunked_req, waiting,
            {req: self._kept_back(req) for req in self.running}, self.starving,
            self.leases.num_released, self.leases.available_pages, len(scheduler.live),
        )  # fmt: skip

    def _kept_back(self, req: Request) -> float:
        """What is kept back of what one who runs may still say, in tokens."""
        if self.rules.run_first == "unified" or self.rules.reserves == "prompt":
            return 0
        if self.rules.reserves == "rest" or req.params.ignore_eos:
            return rest(req) + self.config.page_size
        return rest(req) * self.scheduler.new_token_ratio.current

    def turn_of(self, req: Request) -> Key:
        """The queue's order, where it looks at the requests alone; else all are alike."""
        policy = self.config.schedule_policy
        if policy == "random" or (policy in CACHE_AWARE and self.scheduler.tree is not None):
            return ()
        by_priority = self.config.enable_priority_scheduling or policy == "priority"
        longest_first = -req.params.max_new_tokens if policy == "lof" else 0
        return -req.priority if by_priority else 0, longest_first, self.places[req]

    # -- who loses their memory --------------------------------------------------------------------

    def _not_the_one(self, req: Request, before: Before) -> Iterator[str]:
        """What is wrong with it that ``req`` loses its memory now, for want of pages.

        A prompt in chunks goes first, as it has said nothing yet; else whom the rules name. Nobody
        at all, if what is free and what is on its way back is enough for all who are ready: else
        one after the other would have to, and for ever (vllm-ascend #16315). Nor while one is
        about to end, whose memory comes back by itself.
        """
        scheduler, leases, running = self.scheduler, self.leases, self.running
        chunked, is_unified = scheduler.prefill.chunked_req, self.rules.run_first == "unified"
        here = [one for one in running if one in scheduler.running_batch]
        if chunked is not None:
            named, rule = chunked, "whose prompt is in chunks"
        elif is_unified or self.rules.victim == "newest":
            named, rule = here[-1], "the newest"
        else:
            named = min(reversed(here), key=lambda one: (len(one.output_ids), -len(one.prompt)))
            outputs = counted(len(named.output_ids), "output")
            rule = f"with {outputs} and a prompt of {counted(len(named.prompt), 'token')}"
        victim = f"behind step {scheduler.step} {req.rid} has to give its memory back"
        if req is not named:
            yield f"{victim}, but the rule names {named.rid}, {rule}"
        asks = [(one.lease, one.reach) for one in before.ready if one not in before.retracted]
        if is_unified and chunked is not None and chunked.lease is not None:
            left = min(chunked.extend_len, self.config.prefill_budget - len(asks))
            asks.append((chunked.lease, chunked.computed_len + left))
        need = sum(leases.pages_lacking(lease, reach) for lease, reach in asks if lease)
        if need <= leases.available_pages + leases.pages_returning:
            yield (
                f"{victim}, when the next step needs {counted(need, 'page')}: "
                f"{leases.available_pages} can be had, and {leases.pages_returning} more when what "
                "is in flight is back"
            )
        if not is_unified and (ending := self._about_to_end()):
            yield f"{victim}, when {words(ending)} will end with what is in flight"

    def _not_lower(self, req: Request, before: Before) -> Iterator[str]:
        """What is wrong with it that ``req`` makes way for somebody of higher priority."""
        victim = f"behind step {self.scheduler.step} {req.rid} (priority {req.priority}) makes way"
        heads = [one for one in before.waiting if one.lease is None]
        highest = max(heads, key=lambda one: one.priority)
        if not self.outranks(highest, req):
            yield f"{victim}, and nobody who waits has a priority that is so much higher"
        line = {one: (one.priority, -self.places[one]) for one in self.scheduler.running_batch}
        if lower := [one for one in line if line[one] < line[req]]:
            yield f"{victim}, but the rule names {lower[0].rid} (priority {lower[0].priority})"
        if before.made_way and len(heads) == len(before.waiting):  # nobody has come before
            decision = Decision(self, before, None)
            given = sum(
                before.kept[one] for one in before.made_way
            )  # by SGLang's rules that is all
            if decision.room(highest) + given >= decision.need(highest):
                yield f"{victim}, too, when there is room for {highest.rid}"

    def outranks(self, one: Request, other: Request) -> bool:
        """Whether ``other`` has to make way for ``one``."""
        least = self.config.priority_scheduling_preemption_threshold
        return one.priority - other.priority > least

    def _about_to_end(self) -> list[Request]:
        """Who runs and has been launched as often as ever: the result in flight is the last."""
        most = self.scheduler.decode.overrun
        running = self.scheduler.running_batch
        return [req for req in running if req.device_len >= req.max_device_len + most]

    # -- the decode side of ``pd`` -----------------------------------------------------------------

    def listen_to_reservations(self, scheduler: DecodeScheduler) -> None:
        """Hear who gets pages there: first come, first served, as far as there are any."""
        pop_preallocated, table = scheduler.pop_preallocated, scheduler.table

        def popped() -> list[tuple[Request, Lease]]:
            queue, found = list(scheduler.prealloc_queue.values()), pop_preallocated()
            taken = [req for req, _ in found]
            left = [req for req in queue if req not in taken]
            self._keep("order", (
                f"{req.rid} gets its pages before {other.rid}, which asked for them earlier"
                for req in taken
                for other in queue[: queue.index(req)]
                if other in left
            ))  # fmt: skip
            need = [scheduler.allocator.pages_for(req.max_device_len) for req in left[:1]]
            can = scheduler.allocatable_pages
            self._keep("progress", (
                f"{left[0].rid} gets no pages, when {table.available_size} of {table.size} rows "
                f"are free, and it needs {counted(pages, 'page')}, when {can} can be reserved"
                for pages in need
                if pages <= can and table.available_size
            ))  # fmt: skip
            return found

        scheduler.pop_preallocated = popped  # type: ignore[method-assign]

    # -- what came of it ---------------------------------------------------------------------------

    def _judge(self, before: Before, batch: ScheduleBatch | None, is_chained: bool = False) -> None:
        self.before = None
        scheduler = self.scheduler
        if batch and (in_flight := scheduler.batches_in_flight) > self.depth:
            self._keep("progress", [
                f"with step {batch.step} there are {in_flight} steps in flight, but the loop has "
                f"at most {self.depth}"
            ])  # fmt: skip
        self._keep("progress", self._lost_sight_of())
        if len(scheduler.live) == before.num_live:  # else one was given up: all has changed
            decision = Decision(self, before, batch)
            if is_chained and before.waiting:
                self._keep("progress", [f"{decision.waits(before.waiting[0])} was not asked"])
            self._keep("progress", decision.left_out(is_chained))
            self._keep("order", decision.out_of_order())
        if batch is not None:
            rows = batch.rows[: batch.num_extend_reqs]
            done = [row.req for row in rows if row.deliver and row.req not in self.running]
            is_mixed = len(batch.rows) > len(rows) and self.config.enable_mixed_chunk
            self.running = done + self.running if is_mixed else self.running + done

    def _keep(self, law: str, found: Iterable[str]) -> None:
        for sentence in found:
            self.findings.setdefault(law, sentence)

    def _lost_sight_of(self) -> Iterator[str]:
        scheduler, chunked = self.scheduler, self.scheduler.prefill.chunked_req
        known = {*scheduler.waiting_queue, *scheduler.running_batch}
        known |= {chunked} if chunked else set()
        if isinstance(scheduler, PrefillScheduler):
            known |= {*scheduler.bootstrap_queue.values()}
        if isinstance(scheduler, DecodeScheduler):
            known |= {*scheduler.unanswered.values()}
        for req in scheduler.live.values():
            if req not in known:
                yield f"{req.rid} has not ended, but neither waits nor runs after {scheduler.step}"


class Decision:
    """What came of it: the step that was committed, or none."""

    def __init__(self, watched: Watched, before: Before, batch: ScheduleBatch | None) -> None:
        self.watched, self.before = watched, before
        self.scheduler, self.leases = watched.scheduler, watched.leases
        self.config, self.rules = watched.config, watched.rules
        self.is_unified = self.rules.run_first == "unified"
        rows, first = (batch.rows, batch.num_extend_reqs) if batch else ((), 0)
        self.prompts = {row.req: row for row in rows[:first]}
        self.decodes = [row.req for row in rows[first:]]
        self.admitted = [row.req for row in rows[:first] if row.lease.num_chunks == 1]
        self.waiting = [req for req in before.waiting if req in self.scheduler.waiting_queue]

    # -- what there is room for: never more than the rules would say -------------------------------

    def room(self, req: Request) -> float:
        """Tokens of memory that are left for one more, when all are charged as high as may be."""
        size, kept = self.config.page_size, self.before.kept
        asked_first = not (self.prompts or self.is_unified)  # before others took their pages
        pages = self.before.available if asked_first else self.leases.available_pages
        free = pages * size - len(kept) * self.config.enable_mixed_chunk - sum(kept.values())
        for req, row in self.prompts.items() if not self.is_unified else ():
            free -= req.known_len - row.end + req.params.max_new_tokens + 2 * size
        return free

    def need(self, req: Request) -> float:
        """The same of what it takes to admit a request, whatever it finds in the cache."""
        says_nothing = self.is_unified or self.rules.reserves == "prompt"
        prompt = (ceil(req.known_len / self.config.page_size) + 1) * self.config.page_size
        return prompt if says_nothing else prompt + req.params.max_new_tokens

    @property
    def budget(self) -> float:
        """Tokens that this step surely has left for prompts, each of them in whole pages."""
        size, config = self.config.page_size, self.config
        chunk = inf if config.chunked_prefill_size == -1 else config.chunked_prefill_size
        paid = sum(ceil(row.extend_len / size) * size for row in self.prompts.values())
        if self.is_unified:
            each = 1 + config.num_draft_tokens
            return config.prefill_budget - len(self.decodes) * each - paid
        mixed = len(self.before.running) if config.enable_mixed_chunk else 0
        return min(config.max_prefill_tokens, chunk) - mixed - paid

    # -- progress ----------------------------------------------------------------------------------

    def left_out(self, is_chained: bool) -> Iterator[str]:
        """Who could be in the step, and is not."""
        watched, before = self.watched, self.before
        still_ready = [req for req in before.ready if req not in before.retracted]
        missing = [req for req in still_ready if req not in self.decodes]
        if self.is_unified and not is_chained:
            yield from self._of_one_budget(missing)
        else:
            yield from self._of_running(missing)
        waits = before.retracted or before.starving or watched.starving
        if waits or (self.rules.run_first == "decode" and self.decodes):
            if before.retracted:  # it may have been refused before and after
                watched.refused_at = {before.num_released, self.leases.num_released}
        elif (chunked := before.chunked) is not None and chunked not in self.prompts:
            assert chunked.lease is not None
            lacking = self.leases.pages_lacking(chunked.lease, chunked.known_len)
            if lacking <= self.leases.available_pages and self.budget > 0:
                yield (
                    f"{chunked.rid} has come to position {chunked.computed_len} of its prompt, "
                    f"with memory for all of it, and {self._not}"
                )
        elif self.waiting and not self._is_chunked:
            yield from self._of_waiting()

    def _of_running(self, missing: Sequence[Request]) -> Iterator[str]:
        """All who may run are in a step of decodes; beside prompts all of them or nobody."""
        watched, leases = self.watched, self.leases
        if self.decodes:
            watched.starving = None
        if not missing:
            return
        need = sum(leases.pages_lacking(req.lease, req.reach) for req in missing if req.lease)
        is_short = need > leases.available_pages and not self.decodes
        if not self.prompts and is_short:
            is_alone = len(self.scheduler.running_batch) + bool(self.before.chunked) <= 1
            comes_back = need <= leases.available_pages + leases.pages_returning
            if is_alone or comes_back or not watched._about_to_end():
                watched.starving = missing[0]
        elif self.prompts and not self.decodes and self.rules.run_first == "prefill":
            alone = any(req.params.return_logprob for req in [*self.before.ready, *self.prompts])
            if self.config.enable_mixed_chunk and not (is_short or alone):  # SGLang mixes no batch
                yield self._may_run(missing[0])
        else:
            yield self._may_run(missing[0])

    def _of_one_budget(self, missing: Sequence[Request]) -> Iterator[str]:
        """One after the other, as far as the budget goes; who finds no memory waits for it."""
        prompts = sum(row.extend_len for row in self.prompts.values())
        left = self.budget + prompts
        self.watched.starving = next(iter(missing), None) if left > 0 else None
        for req in missing if left > 0 and not self.before.retracted else ():
            if req.lease and self.leases.pages_lacking(req.lease, req.reach) <= (
                self.leases.available_pages
            ):
                yield self._may_run(req)

    def _of_waiting(self) -> Iterator[str]:
        """The first who waits has a reason to; several may be it where nobody can say."""
        watched, table = self.watched, self.leases.table
        first = min(map(watched.turn_of, self.waiting))
        heads = [req for req in self.waiting if watched.turn_of(req) == first]
        lacks_memory = [req for req in heads if self.need(req) >= self.room(req)]
        lower = [req for req in self.before.running if watched.outranks(heads[0], req)]
        can_make_way = self._preempts and lower
        if lacks_memory or not (table.available_size or can_make_way):
            watched.refused_at = {self.before.num_released, self.leases.num_released}
            return
        is_full = self.leases.num_released in watched.refused_at and self.rules.ask_again == "left"
        size = self.config.page_size
        least = max(ceil(req.known_len / size) * size + 1 for req in heads)
        if is_full or self.budget < (least if self.prompts else size):
            return
        head, pages = heads[0], self.config.num_pages
        yield (
            f"{self.waits(head)} {'it ' if self.prompts or self.decodes else ''}{self._not}; "
            f"{table.available_size} of {table.size} rows are free, and "
            f"{self.leases.available_pages} of {pages} pages can be had"
        )

    @property
    def _preempts(self) -> bool:
        """Whether a request of lower priority makes way where rows are lacking."""
        policy, config = self.config.schedule_policy, self.config
        by_priority = config.enable_priority_scheduling or policy == "priority"
        return by_priority and not self.is_unified and not self.leases.returning

    def waits(self, req: Request) -> str:
        """It waits, in words."""
        return f"{req.rid} waits and is first in the queue, and"

    def _may_run(self, req: Request) -> str:
        token = "is known" if req.computed_len < req.known_len else "need not be known"
        rows, most = len(self.prompts) + len(self.decodes), self.config.max_running_requests
        return f"{req.rid} may run (its token {token}, {rows} of {most} rows used) and {self._not}"

    @property
    def _not(self) -> str:
        some, step = self.prompts or self.decodes, self.scheduler.step
        return f"is not in step {step}" if some else f"nothing runs after step {step}"

    # -- order -------------------------------------------------------------------------------------

    def out_of_order(self) -> Iterator[str]:
        """Who is in the step before others, wrongly. Ask ``left_out`` first."""
        watched, running, step = self.watched, self.before.running, self.scheduler.step
        for one, other in pairwise(self.decodes):
            if running.index(one) > running.index(other):
                yield f"{one.rid} is in step {step} before {other.rid}, which ran before it"
        starving = watched.starving if self.is_unified else self.before.starving
        for at, req in enumerate(self.admitted):
            admitted, policy = f"{req.rid} is admitted in step {step}", self.config.schedule_policy
            for other in [*self.waiting, *self.admitted[at + 1 :]]:
                if watched.turn_of(other) < watched.turn_of(req):
                    yield f"{admitted} before {other.rid}, which by {policy} goes first"
            if self._is_chunked and self.before.chunked:
                yield f"{admitted} before the prompt of {self.before.chunked.rid} is done"
            if starving and starving in self.before.ready:
                yield f"{admitted}, when {starving.rid} may run and waits for memory"
            if self.is_unified and self.before.retracted:
                yield f"{admitted}, when {words(self.before.retracted)} had to make way for others"

    @property
    def _is_chunked(self) -> bool:
        """Whether a prompt was in chunks before, and is not done with this step."""
        req = self.before.chunked
        if req is None or req in self.before.retracted:
            return False
        return req not in self.prompts or not self.prompts[req].deliver


def rest(req: Request) -> int:
    """Tokens that a request may still say."""
    return max(0, req.params.max_new_tokens - len(req.output_ids))


def words(reqs: Sequence[Request]) -> str:
    """Their ids."""
    return " and ".join(req.rid for req in reqs) or "nobody"
