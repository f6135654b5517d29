"""Admission: which waiting prompts start now, and how much of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..core import ChunkedReq, Request
from ..memory import LeasePool, PrefixCache
from ..trace import Recorder
from .new_token_ratio import NewTokenRatio
from .preemption import preempt_for_memory, preempt_to_schedule
from .prefill_adder import PrefillAdder
from .prefill_budget import AddReqResult, PrefillBudget
from .prompt_budget import PromptBudget
from .refusal import refuse
from .rest_budget import RestBudget
from .rules import Rules
from .waiting_queue import WaitingQueue

Retract = Callable[[Request], None]

BUDGETS: dict[str, type[PrefillBudget]] = {
    "ratio": PrefillBudget,
    "rest": RestBudget,
    "prompt": PromptBudget,
}  # by ``Rules.reserves``


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
    new_token_ratio: NewTokenRatio
    recorder: Recorder
    chunk_size: int | None
    max_prefill_tokens: int
    preemption_threshold: int | None = None
    rules: Rules = field(default_factory=Rules)
    chunked_req: ChunkedReq | None = None
    _full_at: tuple[int, ...] | None = field(default=None, init=False)

    def schedule_next_batch(
        self,
        running: Sequence[Request],
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
        adder = self._adder(running, num_mixed_decode_tokens)
        if self.chunked_req is not None:
            self._full_at = None  # the batch that had its last chunk has lost a request
            if not adder.add_chunked_req(self.chunked_req.req):
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
        return self._full_at == self._changes()

    def mark_full(self) -> None:
        """Nobody needs to ask for memory again before something has changed."""
        self._full_at = None if self.rules.ask_again == "every_step" else self._changes()

    def mark_open(self) -> None:
        """The queue is asked in the next step, whoever was refused in this one."""
        self._full_at = None

    def start(self, req: Request, extend_len: int) -> None:
        """A request has been admitted; if only a part of it is computed, it is the chunked one."""
        assert req.lease is not None
        self.cache.begin(req.lease)
        self.waiting_queue.remove(req)
        if extend_len < req.extend_len:
            self.chunked_req = ChunkedReq(req)

    def remove_req(self, req: Request) -> None:
        """Drop one request, wherever it waits."""
        if req in self.waiting_queue:
            self.waiting_queue.remove(req)
            if self.rules.ask_again == "changed":
                self._full_at = None  # those behind it may be luckier
        if self.chunked_req is not None and self.chunked_req.req is req:
            self.chunked_req = None

    def _changes(self) -> tuple[int, ...]:
        """What has to change before the queue is asked again."""
        if self.rules.ask_again == "changed":
            pages = self.leases.num_retired
            return self.leases.num_released, pages, self.waiting_queue.num_added
        return (self.leases.num_released,)

    def _may_look(self) -> bool:
        """Whether a look at the queue makes sense: there is a row, or somebody may lose theirs."""
        preempts = self.preemption_threshold is not None
        if self.leases.table.available_size or self.chunked_req is not None or preempts:
            return True
        if (first := self.waiting_queue.first()) is not None:
            self._no_row(first)
            self.mark_full()
        return False

    def _adder(self, running: Sequence[Request], num_mixed_decode_tokens: int) -> PrefillAdder:
        rules = self.rules
        budget = BUDGETS[rules.reserves](
            self.leases,
            running,
            self.new_token_ratio.current,
            self.max_prefill_tokens,
            self.chunk_size,
            num_mixed_decode_tokens,
            rules.ignore_eos_reserve == "whole",
            rules.budget_counts == "tokens",
            rules.chunk_ends == "anywhere",
            rules.who_is_cut == "first",
        )
        if self.recorder.is_on:
            mixed = num_mixed_decode_tokens
            self.recorder.mark("budget", mixed_decode_tokens=mixed, **budget.remains())
        return PrefillAdder(budget, self.leases, self.cache, self.recorder)

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
            by_row = self.rules.preempt_for == "rows"
            may_try = not (needs_row and by_row) or self._make_way(req, adder, retract)
            result = self._try_add(adder, req) if may_try else self._no_row(req)
            no_token = result is AddReqResult.NO_TOKEN
            if (
                no_token
                and req.lease is None
                and not by_row
                and self._make_way(req, adder, retract)
            ):
                result = self._try_add(adder, req)
            if result is AddReqResult.NO_TOKEN:
                self._refused(adder, is_added=req.lease is not None)
            if req.lease is None:
                return
            self.start(*adder.can_run_list[-1])
            if result is not AddReqResult.CONTINUE:
                self._refuse_next(budget)
                return

    def _refused(self, adder: PrefillAdder, is_added: bool) -> None:
        """Memory or rows let nobody else in: is the next step to ask again?

        In SGLang the flag is ``running_batch``'s: it lasts as long as somebody runs, and where
        somebody may be preempted it does not count. Asking only what changes, those just admitted
        would count for less once they run, so they do.
        """
        if self.rules.ask_again == "changed":
            if not (is_added or adder.can_run_list):
                self.mark_full()
        elif adder.budget.running and self.preemption_threshold is None:
            self.mark_full()

    def _make_way(self, req: Request, adder: PrefillAdder, retract: Retract) -> bool:
        """Let running requests make way for an urgent one; whether any did."""
        if self.preemption_threshold is None:
            return False
        by_row = self.rules.preempt_for == "rows"
        choose = preempt_to_schedule if by_row else preempt_for_memory
        victims = choose(req, adder.budget, adder.budget.running, self.preemption_threshold)
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
