"""One decision of a scheduler, held against the rules of who runs and who is admitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, inf
from typing import NamedTuple

from ...core import Request, ScheduleBatch
from ...core.logprobs import next_logprob_at
from ...scheduler import Scheduler
from .queue_order import Path, QueueOrder, walk
from .victims import ROUNDING, Memory, Preemption, new_tokens, who_makes_way, words

Changes = tuple[int, int]  # leases that went back, and requests that came to wait; so far


class Full(NamedTuple):
    """Memory has refused the first who waited, between two states; and who waited then."""

    since: Changes
    until: Changes
    waited: set[Request]


@dataclass
class Remembered:
    """What has to be known of the decisions before."""

    places: dict[Request, int] = field(default_factory=dict)  # in which order requests came
    starving: Request | None = None  # may run, and waits for memory on its way back
    full: Full | None = None  # when memory refused the first


class Before:
    """What was true when the scheduler was asked for its next step, and what happened since."""

    def __init__(self, scheduler: Scheduler, remembered: Remembered) -> None:
        chunked, config = scheduler.prefill.chunked_req, scheduler.config
        live = scheduler.live.values()
        self.scheduler, self.remembered = scheduler, remembered
        self.order = QueueOrder(scheduler, remembered.places)
        self.waiting: dict[Request, Path] = {}  # and what each finds in the cache
        for req in scheduler.waiting_queue:
            self.waits(req)
        self.running = list(scheduler.running_batch)
        self.ready = [  # those of them that may run, in order of arrival
            req
            for req in sorted(self.running, key=remembered.places.__getitem__)
            if req.device_len < req.max_device_len + scheduler.decode.overrun
            and (config.run_ahead or req.computed_len < req.known_len)
        ]
        self.reach = {req: (req.reach_with(0), req.next_draft_len) for req in self.ready}
        holders = [*live, *self.running]
        self.pages = {req.lease: len(req.lease.pages) for req in holders if req.lease}
        self.chunked = chunked.req if chunked else None
        self.ratio = scheduler.new_token_ratio.current
        self.changes = changes_of(scheduler)
        self.num_live = len(live)
        self.retracted: list[Request] = []  # since then
        self.in_round: list[Request] = []  # since it began anew, with the memory of who gave way
        self.is_short = False  # somebody had to, so that others can decode
        self.preemptions: list[Preemption] = []

    def waits(self, req: Request) -> None:
        """A request is in the queue; with stale output in flight it can't be admitted."""
        tree = self.scheduler.tree
        if req.num_stale_output_tokens:
            return
        self.order.add(req)
        num_prompt, num_known = len(req.prompt), len(req.input_token_logprobs)
        wanted = next_logprob_at(req.params, num_prompt, num_known)
        tokens = req.known_tokens(0, min(wanted, req.known_len - 1))
        self.waiting[req] = walk(tree, tokens) if tree else []

    @property
    def still_ready(self) -> list[Request]:
        """Who may run and has its memory."""
        return [req for req in self.ready if req not in self.retracted]

    def memory(self, taken: int = 0) -> Memory:
        """What a request of high priority could have, when the step had not ``taken`` its pages."""
        return Memory.now(self.scheduler.leases, self.running, self.pages, taken)

    def make_way(self, victim: Request) -> None:
        """One has to, for whoever is first in the queue."""
        waiting = [req for req in self.waiting if req.lease is None]
        for head in self.order.heads(waiting):
            made = [item for item in self.preemptions if item.head is head]
            if not made:
                admitted = [req for req in self.waiting if req.lease is not None]
                made = [Preemption(head, admitted, self.memory())]
                self.preemptions += made
            made[0].victims.append(victim)


def changes_of(scheduler: Scheduler) -> Changes:
    """How often memory has come back, and requests have come."""
    return scheduler.leases.num_released, scheduler.waiting_queue.num_added


@dataclass
class Room:
    """What is left in one step for the next prompt, in tokens (SGLang ``PrefillAdder``)."""

    page_size: int
    total: float  # memory, less what those who run may still say
    now: float
    prompts: float  # of max_prefill_tokens
    chunk: float

    def charge(self, extend_len: int, new_tokens: int) -> None:
        """A prompt, or a part of it, takes whole pages, one more, and what it may say."""
        tokens = ceil(extend_len / self.page_size) * self.page_size
        self.total -= tokens + new_tokens + self.page_size
        self.now -= tokens + self.page_size
        self.prompts -= tokens
        self.chunk -= tokens

    @property
    def is_spent(self) -> bool:
        """Whether nobody else is asked."""
        return min(self.total, self.now, self.prompts, self.chunk) <= ROUNDING


class Decision:
    """What came of it: the step that was committed, or none."""

    def __init__(self, before: Before, batch: ScheduleBatch | None, is_chained: bool) -> None:
        self.before, self.remembered = before, before.remembered
        self.scheduler, self.leases = before.scheduler, before.scheduler.leases
        self.config = before.scheduler.config
        self.step = self.scheduler.step
        rows = batch.rows if batch else ()
        first = batch.num_extend_reqs if batch else 0
        self.prompts = {row.req: row for row in rows[:first]}
        self.decodes = {row.req: row for row in rows[first:]}
        self.admitted = [row.req for row in rows[:first] if row.lease.num_chunks == 1]
        self.is_unified = self.config.in_force.run_first == "unified" and not is_chained
        self.was_starving = self.remembered.starving
        mixes = self.config.enable_mixed_chunk and not wants_logprobs(before.ready)
        self.num_mixed = len(before.ready) if mixes else 0
        self.left = self.config.prefill_budget  # tokens for prompts (unified)
        self.unheeded: list[str] = []  # requests of high priority
        self.promised = 0  # pages for decodes, if all drafts should be right (unified)

    def left_out(self) -> Iterator[str]:
        """Who could be in the step, and is not."""
        yield from self._of_running_unified() if self.is_unified else self._of_running()
        yield from self._of_chunked()
        yield from self._of_waiting()

    def out_of_order(self) -> Iterator[str]:
        """Who was admitted before others, and who made way wrongly. Ask ``left_out`` first."""
        yield from self.unheeded
        yield from self._of_decodes()
        yield from self._of_admitted()
        yield from self._of_preemptions()

    # -- who decodes ---------------------------------------------------------------------------

    def _of_running(self) -> Iterator[str]:
        """All who may run are in a step of decodes; beside prompts all of them or nobody."""
        missing = [req for req in self.before.still_ready if req not in self.decodes]
        if self.decodes:
            self.remembered.starving = None
        if not missing:
            return
        need = sum(self.leases.pages_lacking(req.lease, req.reach) for req in missing if req.lease)
        is_short = need > self.leases.available_pages and not self.decodes
        if not self.prompts and is_short:
            self.remembered.starving = missing[0]
        elif self.prompts and not self.decodes and self.config.in_force.run_first == "prefill":
            cannot_mix = wants_logprobs([*self.before.ready, *self.prompts])
            if self.config.enable_mixed_chunk and not (is_short or cannot_mix):
                yield self._may_run(missing[0])
        else:
            yield self._may_run(missing[0])

    def _of_running_unified(self) -> Iterator[str]:
        """One after the other, as far as the budget goes; who finds no memory waits for it."""
        missing: dict[Request, int] = {}
        for req in self.before.still_ready:
            if not self.left:
                break
            reach, drafts = self.before.reach[req]
            drafts = min(drafts, self.left - 1)
            assert req.lease is not None
            need = self._pages(reach + drafts) - self.before.pages[req.lease]
            if req in self.decodes:
                self.left -= 1 + drafts
                self.promised += max(0, need)
            else:
                missing[req] = need
        self.remembered.starving = next(iter(missing), None)
        for req, need in missing.items():
            if need <= self._available() and not self.before.retracted:
                yield self._may_run(req)

    def _may_run(self, req: Request) -> str:
        token = "is known" if req.computed_len < req.known_len else "need not be known"
        rows, most = len(self.prompts) + len(self.decodes), self.config.max_running_requests
        return f"{req.rid} may run (its token {token}, {rows} of {most} rows used) and {self._not}"

    @property
    def _not(self) -> str:
        some = self.prompts or self.decodes
        return f"is not in step {self.step}" if some else f"nothing runs after step {self.step}"

    # -- who waits -----------------------------------------------------------------------------

    def _of_chunked(self) -> Iterator[str]:
        """A prompt in chunks goes on in the next step that has prompts."""
        req = self.before.chunked
        if req is None or req.lease is None or req in self.prompts or self._must_stand_back():
            return
        pages = self._available() + len(req.lease.pages)
        room = pages * self.config.page_size - req.computed_len
        chunk = inf if self.config.chunked_prefill_size == -1 else self.config.chunked_prefill_size
        left = self.left if self.is_unified else chunk - self.num_mixed
        if room > 0 and left > 0:
            yield (
                f"{req.rid} has come to position {req.computed_len} of its prompt, with memory for "
                f"{room} more, and {self._not}"
            )

    def _of_waiting(self) -> Iterator[str]:
        """The first who waits, behind those admitted, has a reason to."""
        waiting, queue = self._waiting(), self.scheduler.waiting_queue
        now = changes_of(self.scheduler)
        if not waiting or self._is_chunked():
            return
        if self._must_stand_back():
            if self.before.is_short:  # it may have been refused before and after
                self.remembered.full = Full(self.before.changes, now, set(queue))
            return
        heads, is_full = self.before.order.heads(waiting), self._is_full()
        reasons = [self._why_not(head) for head in heads]
        if NO_MEMORY in reasons:
            if self.is_unified or not self.prompts:  # these would count for less, once they run
                self.remembered.full = Full(now, now, set(queue))
        elif not (any(reasons) or is_full):
            table, pages = self.leases.table, self.config.num_pages
            yield (
                f"{heads[0].rid} waits and is first in the queue, {table.available_size} of "
                f"{table.size} rows are free, {self._available()} of {pages} pages can be had, and "
                f"{'it ' if self.prompts or self.decodes else ''}{self._not}"
            )

    def _why_not(self, req: Request) -> str:
        """Why the first who waits is not admitted, or nothing."""
        size, table = self.config.page_size, self.leases.table
        path = self.before.waiting[req]
        hit_len = sum(count for _, count in path) * size
        to_lock = sum(count for node, count in path if not node.lock_ref)
        extend_len = req.known_len - hit_len
        if self.is_unified:
            left = self.left - sum(row.extend_len for row in self.prompts.values())
            need = self._pages(hit_len + min(extend_len, left)) - hit_len // size
            is_short = not table.available_size or need > self._available() - to_lock
            return NO_BUDGET if left <= 0 else NO_MEMORY if is_short else ""
        room = self._room(self._available(), self.prompts)
        if room.is_spent:
            return NO_BUDGET
        need = extend_len + new_tokens(req) + size
        if not table.available_size or need >= room.total - to_lock * size - ROUNDING:
            return "" if self.leases.is_idle else self._others_make_no_way(req, room)
        is_much = self.prompts and ceil(extend_len / size) * size >= room.prompts
        is_cut_to_nothing = extend_len > room.chunk and room.chunk < size
        return NO_BUDGET if is_much or is_cut_to_nothing else ""

    def _others_make_no_way(self, req: Request, room: Room) -> str:
        """They don't have to, unless its priority lets it come at their cost."""
        by_priority = self.config.schedule_policy == "priority" and not self.is_unified
        if by_priority and not (self.before.preemptions or self._is_full()):
            memory = self.before.memory(self._available() - self.leases.available_pages)
            ratio, places = self.before.ratio, self.remembered.places
            named = who_makes_way(req, room.total, ratio, memory, self.config, places)
            if all(named):
                low = named[0][0]
                self.unheeded.append(
                    f"{req.rid} (priority {req.priority}) waits, and {low.rid} (priority "
                    f"{low.priority}) does not make way behind step {self.step}"
                )
        return NO_MEMORY

    def _of_decodes(self) -> Iterator[str]:
        """They are in a step in order of arrival: a budget that is spent has room for the first."""
        places = self.remembered.places
        for one, other in pairwise(self.decodes):
            if places[one] > places[other]:
                yield f"{one.rid} is in step {self.step} before {other.rid}, which came earlier"

    def _of_admitted(self) -> Iterator[str]:
        """Those admitted are the first in the queue, and it was time for them."""
        order, waiting = self.before.order, self._waiting()
        starving = self.remembered.starving if self.is_unified else self.was_starving
        for at, req in enumerate(self.admitted):
            admitted = f"{req.rid} is admitted in step {self.step}"
            for other in [*waiting, *self.admitted[at + 1 :]]:
                if order.precedes(other, req):
                    yield f"{admitted} before {other.rid}, which by {order.policy} goes first"
            if self._is_chunked() and self.before.chunked:
                yield f"{admitted} before the prompt of {self.before.chunked.rid} is done"
            if starving and starving in self.before.ready:
                yield f"{admitted}, when {starving.rid} may run and waits for memory"
            if self.is_unified and self.before.in_round:
                yield f"{admitted}, when {words(self.before.in_round)} had to make way for others"

    def _of_preemptions(self) -> Iterator[str]:
        """Those who made way for a request of higher priority are those whom the rule names."""
        ratio, places = self.before.ratio, self.remembered.places
        for item in self.before.preemptions if not self.before.is_short else ():
            earlier = [req for req in (self.before.chunked, *item.admitted) if req]
            left = self._room(item.memory.available, earlier).total
            named = who_makes_way(item.head, left, ratio, item.memory, self.config, places)
            if item.victims not in named:
                yield (
                    f"behind step {self.step} {words(item.victims)} had to make way for "
                    f"{item.head.rid}, but the rule names {words(named[0])}"
                )

    # -- what the rules ask for ----------------------------------------------------------------

    def _waiting(self) -> list[Request]:
        """Those who still wait, and could come."""
        queue = self.scheduler.waiting_queue
        return [req for req in self.before.waiting if req in queue]

    def _is_chunked(self) -> bool:
        """Whether a prompt was in chunks before, and is not done with this step."""
        req = self.before.chunked
        if req is None or req in self.before.retracted:
            return False
        return req not in self.prompts or not self.prompts[req].deliver

    def _must_stand_back(self) -> bool:
        """Whether the rule of who runs first has let no prompt come."""
        starving = self.remembered.starving
        if self.is_unified:
            return bool(self.before.retracted or starving)
        if self.config.in_force.run_first == "decode" and (self.decodes or starving):
            return True
        return self.was_starving is not None or self.before.is_short

    def _is_full(self) -> bool:
        """Whether nothing has changed since memory refused the first who waits."""
        full, changes = self.remembered.full, self.before.changes
        if full is None or not all(
            low <= at <= high for low, at, high in zip(full.since, changes, full.until, strict=True)
        ):
            return False
        return full.waited <= {*self.scheduler.waiting_queue, *self.admitted}

    def _available(self) -> int:
        """Pages that could be had when the last prompt had been looked at.

        A prompt takes its pages at the commit. With vLLM's rule they are promised before, and so
        are those of decodes, also for drafts that nobody came to propose.
        """
        taken = {
            req: len(row.lease.pages) - self.before.pages.get(row.lease, row.lease.shared_pages)
            for req, row in {**self.prompts, **self.decodes}.items()
        }
        if self.is_unified:
            decodes = sum(taken[req] for req in self.decodes)
            return self.leases.available_pages + decodes - self.promised
        return self.leases.available_pages + sum(taken.values())

    def _room(self, available: int, prompts: Iterable[Request]) -> Room:
        """What is left behind those prompts of the step."""
        config, size, mixed = self.config, self.config.page_size, self.num_mixed
        chunk = inf if config.chunked_prefill_size == -1 else config.chunked_prefill_size
        kept = sum(map(new_tokens, self.before.running)) * self.before.ratio
        now = available * size - mixed
        room = Room(size, now - kept, now, config.max_prefill_tokens - mixed, chunk - mixed)
        for row in [self.prompts[req] for req in prompts if req in self.prompts]:
            room.charge(row.extend_len, new_tokens(row.req) if row.deliver else 0)
        return room

    def _pages(self, length: int) -> int:
        """Pages of so many positions."""
        return ceil(length / self.config.page_size)


NO_BUDGET, NO_MEMORY = "the budget of a step", "rows or memory"


def wants_logprobs(reqs: Iterable[Request]) -> bool:
    """Whether one of them wants log-probabilities: then SGLang mixes no batch."""
    return any(req.params.return_logprob for req in reqs)
