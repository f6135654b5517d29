"""Admission: which waiting prompts start now, and how much of each.

``PrefillManager`` asks those who wait, in their order, until one is refused; ``PrefillAdder`` puts
one after the other into the batch, and says why the next one does not fit (``budget.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..core import Request
from ..memory import LeasePool, PrefixCache
from ..trace import Recorder
from .budget import CLIP_MAX_NEW_TOKENS, AddReqResult, PrefillBudget, refuse
from .rules import Rules
from .waiting import WaitingQueue


class PrefillAdder:
    """One prefill batch in the making (SGLang ``schedule_policy.py:PrefillAdder``)."""

    def __init__(
        self, budget: PrefillBudget, leases: LeasePool, cache: PrefixCache, recorder: Recorder
    ) -> None:
        self.budget = budget
        self.leases = leases
        self.cache = cache
        self.recorder = recorder
        self.can_run_list: list[tuple[Request, int]] = []  # with the tokens to compute now

    def add_chunked_req(self, req: Request) -> bool:
        """Go on with a prompt that has started; whether it is still not done after this.

        It goes on even with no memory to spare, as far as there is any: what it holds comes back
        only once it is done.
        """
        assert req.lease is not None
        rem, pages = self.budget.next_chunk(), self.leases.available_pages + len(req.lease.pages)
        wanted = req.extend_len if rem is None else min(req.extend_len, rem)
        extend_len = max(0, min(wanted, pages * self.budget.page_size - req.computed_len))
        if extend_len:
            self._add(req, extend_len)
        else:
            refuse(self.recorder, req, AddReqResult.OTHER, "the next chunk", 1, min(wanted, 0))
        return extend_len < req.extend_len or not extend_len

    def add_one_req(self, req: Request) -> AddReqResult:
        """Add a waiting request, cut to a chunk if need be, or say why not.

        Locking the prefix that it found would take that out of what can be evicted, so that counts,
        too; it is locked only once nothing speaks against it, as being refused is no use of it.
        """
        budget = self.budget
        match = self.cache.match_prefix(req)
        hit_len = len(match.pages) * budget.page_size if match else 0
        extend_len = req.asked_len = req.known_len - hit_len
        to_lock = self.leases.pages_to_lock(match) * budget.page_size
        if (refusal := self._refusal(req, extend_len, to_lock)) is not None:
            return refusal
        req.start(self.leases.open(match, req.rid))
        self._add(req, budget.cut(req.extend_len))
        return budget.state()

    def add_alone(self, req: Request) -> AddReqResult:
        """Add a request that the rules refuse although nobody else holds memory.

        They would refuse it for ever. It fits, or it would not have been received; what does not
        is the page that the rules add. Where those who were to decode beside it have just made way
        for it, their part of the chunk is still taken off; without a page of it, it waits until it
        is asked again.
        """
        lease = self.leases.open(self.cache.match_prefix(req), req.rid)
        extend_len = self.budget.cut(req.known_len - lease.settled_len)
        if not extend_len:
            self.leases.close(lease)
            return self._no_page(req)
        req.start(lease)
        self._add(req, extend_len)
        return self.budget.state()

    def _refusal(self, req: Request, extend_len: int, to_lock: int) -> AddReqResult | None:
        """What speaks against a request that would lock ``to_lock`` tokens more of the cache."""
        budget = self.budget
        if not budget.fits(req, extend_len, to_lock):
            return self._no_token(req, budget.total_tokens(req, extend_len) + to_lock)
        rem_input, may_be_cut = budget.rem_input_tokens, budget.rem_chunk_tokens is not None
        is_much = budget.ceil_paged_tokens(extend_len) >= rem_input
        if is_much and self.can_run_list and not may_be_cut:
            return refuse(
                self.recorder, req, AddReqResult.OTHER, "max_prefill_tokens", extend_len, rem_input
            )
        cut_len = budget.cut(extend_len)
        may_be_cut = not (budget.rules.who_is_cut == "first" and self.can_run_list)
        return None if cut_len == extend_len or (cut_len and may_be_cut) else self._no_page(req)

    def _no_page(self, req: Request) -> AddReqResult:
        need, left = self.budget.page_size, self.budget.rem_chunk_tokens or 0
        return refuse(self.recorder, req, AddReqResult.OTHER, "a page of a chunk", need, left)

    def _no_token(self, req: Request, need: int) -> AddReqResult:
        left = int(self.budget.rem_total_tokens)
        return refuse(self.recorder, req, AddReqResult.NO_TOKEN, "KV memory", need, left)

    def _add(self, req: Request, extend_len: int) -> None:
        """Put a request into the batch, and charge for it."""
        is_chunked = extend_len < req.extend_len
        self.can_run_list.append((req, extend_len))
        self.budget.charge(req, extend_len)
        self.recorder.mark(
            "admit", rid=req.rid, hit_len=req.hit_len, extend_len=extend_len,
            is_chunked=is_chunked, **self.budget.remains(),
        )  # fmt: skip


# -- A request of higher priority takes the place of running ones of lower priority ----------------


def preempt_to_schedule(
    req: Request, budget: PrefillBudget, running: Sequence[Request], threshold: int
) -> list[Request]:
    """Who has to go so that ``req`` can come: all that is needed, or nobody.

    SGLang ``schedule_policy.py:PrefillAdder.preempt_to_schedule``. It is asked where rows are
    lacking, and nothing else: want of memory is waited for, and so is a row on its way back. Lowest
    priority first, the newest first among equals, and only those lower by more than ``threshold``;
    nobody, if they would not do. What counts of a prompt is what was to be computed when it was
    asked last, which is nothing for one that never was; of a victim only what was kept back for it.
    """
    if budget.leases.returning:
        return []
    need = req.asked_len + min(req.params.max_new_tokens, CLIP_MAX_NEW_TOKENS)
    short = need - budget.rem_total_tokens
    victims: list[Request] = []
    for victim in sorted(running, key=lambda running: (running.priority, -running.order)):
        if (victims and short <= 0) or req.priority - victim.priority <= threshold:
            break
        victims.append(victim)
        short -= budget.reserve(victim)
    return victims if victims and short <= 0 else []


Retract = Callable[[Request], None]


@dataclass
class PrefillManager:
    """The waiting queue, and the one prompt that is being computed in chunks.

    Follows SGLang ``managers/scheduler.py:get_new_batch_prefill``; the class is mini-sglang's
    (``scheduler/prefill.py``). The first request that is refused stops those behind it.
    ``chunk_size`` None: no prompt is cut. ``preemption_threshold`` None: nobody is preempted.
    """

    waiting_queue: WaitingQueue
    leases: LeasePool
    cache: PrefixCache
    recorder: Recorder
    chunk_size: int | None
    max_prefill_tokens: int
    preemption_threshold: int | None = None
    rules: Rules = field(default_factory=Rules)
    chunked_req: Request | None = None
    _full_at: int | None = field(default=None, init=False)  # leases released when it was full

    def schedule_next_batch(
        self,
        running: Sequence[Request],
        new_token_ratio: float,
        num_mixed_decode_tokens: int = 0,
        retract: Retract = lambda req: None,
    ) -> list[tuple[Request, int]]:
        """The next prefill batch: requests and how many of their tokens to compute.

        Opens a lease for each request that starts. A prompt that does not fit into the chunk
        becomes ``chunked_req``; nobody else is admitted before it is done.
        """
        if not (self.may_start and self._may_look()):
            return []
        waiting = self.waiting_queue.in_order()
        mixed = num_mixed_decode_tokens
        budget = PrefillBudget(
            self.leases, running, new_token_ratio, self.max_prefill_tokens, self.chunk_size, mixed,
            self.rules,
        )  # fmt: skip
        if self.recorder.is_on:
            self.recorder.mark("budget", mixed_decode_tokens=mixed, **budget.remains())
        adder = PrefillAdder(budget, self.leases, self.cache, self.recorder)
        if self.chunked_req is not None:
            self._full_at = None  # the batch that had its last chunk has lost a request
            if not adder.add_chunked_req(self.chunked_req):
                self.chunked_req = None
        self._admit(waiting, adder, retract)
        return adder.can_run_list

    @property
    def may_start(self) -> bool:
        """Whether anybody is worth asking: a prompt that goes on, or one that waits."""
        if self.chunked_req is not None:
            return True
        return bool(self.waiting_queue) and not self.batch_is_full

    @property
    def batch_is_full(self) -> bool:
        """Whether nothing has changed since the last refusal that could help (``ask_again``)."""
        return self._full_at == self.leases.num_released

    def mark_full(self) -> None:
        """Nobody needs to ask for memory again before something has changed."""
        is_asked_anyway = self.rules.ask_again == "every_step"
        self._full_at = None if is_asked_anyway else self.leases.num_released

    def mark_open(self) -> None:
        """The queue is asked in the next step, whoever was refused in this one."""
        self._full_at = None

    def start(self, req: Request, extend_len: int) -> None:
        """A request has been admitted; if only a part of it is computed, it is the chunked one."""
        self.waiting_queue.remove(req)
        if extend_len < req.extend_len:
            self.chunked_req = req

    def remove_req(self, req: Request) -> None:
        """Drop one request, wherever it waits."""
        if req in self.waiting_queue:
            self.waiting_queue.remove(req)
        if self.chunked_req is req:
            self.chunked_req = None

    @property
    def preempts(self) -> bool:
        """Whether somebody who runs may lose their row to a request of higher priority."""
        return self.preemption_threshold is not None

    def _may_look(self) -> bool:
        """Whether a look at the queue makes sense: there is a row, or somebody may lose theirs."""
        if self.leases.table.available_size or self.chunked_req is not None or self.preempts:
            return True
        if (first := self.waiting_queue.first()) is not None:
            self._no_row(first)
            self.mark_full()
        return False

    def _admit(self, waiting: Iterator[Request], adder: PrefillAdder, retract: Retract) -> None:
        """Ask one after the other, until somebody is refused or the batch has enough."""
        budget, leases = adder.budget, self.leases
        goes_on = self.chunked_req is not None
        needs_row = False  # once set, each who comes needs somebody to make way
        for req in waiting:
            state = budget.state()
            if state is AddReqResult.OTHER or (goes_on and state is AddReqResult.CONTINUE):
                self._refuse_next(budget)
                return
            needs_row |= not leases.table.available_size
            may_try = not needs_row or self._make_way(req, adder, retract)
            result = self._try_add(adder, req) if may_try else self._no_row(req)
            if result is AddReqResult.NO_TOKEN and budget.running and not self.preempts:
                # In SGLang the flag is ``running_batch``'s: it lasts as long as somebody runs, and
                # where somebody may be preempted it does not count.
                self.mark_full()
            if req.lease is None:
                return
            self.start(*adder.can_run_list[-1])
            if result is not AddReqResult.CONTINUE:
                self._refuse_next(budget)
                return

    def _make_way(self, req: Request, adder: PrefillAdder, retract: Retract) -> bool:
        """Let running requests make way for an urgent one; whether any did."""
        if self.preemption_threshold is None:
            return False
        running, threshold = adder.budget.running, self.preemption_threshold
        victims = preempt_to_schedule(req, adder.budget, running, threshold)
        for victim in victims:
            adder.budget.gave_way(victim)
            retract(victim)
        return bool(victims)

    def _refuse_next(self, budget: PrefillBudget) -> None:
        """Say to whoever is next that others have spent the budget."""
        if self.recorder.is_on and (req := self.waiting_queue.first()):
            what, left = budget.spent()
            refuse(self.recorder, req, budget.state(), what, 1, left)

    def _no_row(self, req: Request) -> AddReqResult:
        return refuse(self.recorder, req, AddReqResult.NO_TOKEN, "max_running_requests", 1, 0)

    def _try_add(self, adder: PrefillAdder, req: Request) -> AddReqResult:
        if not self.leases.table.available_size:
            return self._no_row(req)
        result = adder.add_one_req(req)
        may_come = self.rules.too_long_alone == "admitted" and self.leases.is_idle
        if result is AddReqResult.NO_TOKEN and may_come:
            return adder.add_alone(req)
        return result


# -- Those who decode beside prompts ---------------------------------------------------------------


def mix_with_running(
    prompts: list[tuple[Request, int]], running: list[Request], leases: LeasePool
) -> list[Request]:
    """The running requests to add to a prefill batch, with an extend length of 1 each.

    SGLang ``schedule_batch.py:ScheduleBatch.mix_with_running``. Nobody, if any of all these wants
    log-probabilities, or if memory does not reach for all: then the prompts run alone, and the
    next decode step sees to it.
    """
    work = [*prompts, *((req, 1) for req in running)]
    need = sum(
        leases.pages_lacking(req.lease, req.computed_len + length)
        for req, length in work
        if req.lease is not None
    )
    wants_logprobs = any(req.params.return_logprob for req, _ in work)
    return [] if need > leases.available_pages or wants_logprobs else running
