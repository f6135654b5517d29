"""Admission: which waiting prompts start now, and how much of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core import ChunkedReq, Request
from ..memory import LeasePool, PrefixCache
from ..trace import Recorder
from .new_token_ratio import NewTokenRatio
from .preemption import preempt_to_schedule
from .prefill_adder import PrefillAdder
from .prefill_budget import AddReqResult, PrefillBudget
from .refusal import refuse
from .waiting_queue import WaitingQueue


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
    asks_again: str = "changed"  # policy/rules.py
    chunked_req: ChunkedReq | None = None
    _full_at: tuple[int, int] | None = field(default=None, init=False)

    def schedule_next_batch(
        self,
        running: Sequence[Request],
        num_mixed_decode_tokens: int = 0,
        retract: Callable[[Request], None] = lambda req: None,
    ) -> list[tuple[Request, int]]:
        """The next prefill batch: requests and how many of their tokens to compute.

        Opens a lease for each request that starts. A prompt that does not fit into the chunk
        becomes ``chunked_req``; nobody else is admitted before it is done.
        """
        if not self.may_start:
            return []
        adder = self._adder(running, num_mixed_decode_tokens)
        if self.chunked_req is not None and not adder.add_chunked_req(self.chunked_req.req):
            self.chunked_req = None
        if self.chunked_req is None and adder.budget.state() is AddReqResult.CONTINUE:
            self._admit(adder, running, retract)
        elif adder.can_run_list:
            self._refuse_next(adder.budget)
        return adder.can_run_list

    @property
    def may_start(self) -> bool:
        """Whether anybody is worth asking: a prompt that goes on, or one that waits."""
        if self.chunked_req is not None:
            return True
        return bool(self.waiting_queue) and not self.batch_is_full

    @property
    def batch_is_full(self) -> bool:
        """Whether nothing has come back and nobody has come since the last refusal for memory.

        Where memory is asked again in every step, it is never full.
        """
        if self.asks_again == "every_step":
            return False
        return self._full_at == (self.leases.num_released, self.waiting_queue.num_added)

    def mark_full(self) -> None:
        """Nobody needs to ask for memory again before something has changed."""
        self._full_at = self.leases.num_released, self.waiting_queue.num_added

    def start(self, req: Request, extend_len: int) -> None:
        """A request has been admitted; if only a part of it is computed, it is the chunked one."""
        assert req.lease is not None
        self.cache.begin(req.lease)
        self.waiting_queue.remove(req)
        if extend_len < req.extend_len:
            self.chunked_req = ChunkedReq(req)

    def remove_req(self, req: Request) -> None:
        """Drop one request, wherever it waits; those behind it may be luckier."""
        if req in self.waiting_queue:
            self.waiting_queue.remove(req)
            self._full_at = None
        if self.chunked_req is not None and self.chunked_req.req is req:
            self.chunked_req = None

    def _adder(self, running: Sequence[Request], num_mixed_decode_tokens: int) -> PrefillAdder:
        budget = PrefillBudget(
            self.leases,
            running,
            self.new_token_ratio.current,
            self.max_prefill_tokens,
            self.chunk_size,
            num_mixed_decode_tokens,
        )
        if self.recorder.is_on:
            mixed = num_mixed_decode_tokens
            self.recorder.mark("budget", mixed_decode_tokens=mixed, **budget.remains())
        return PrefillAdder(budget, self.leases, self.cache, self.recorder)

    def _admit(
        self, adder: PrefillAdder, running: Sequence[Request], retract: Callable[[Request], None]
    ) -> None:
        for req in self.waiting_queue.in_order():
            result = self._offer(adder, req, running, retract)
            if req.lease is None:  # refused
                if result is AddReqResult.NO_TOKEN and not adder.can_run_list:
                    self.mark_full()  # those just admitted would count for less, once they run
                return
            self.start(*adder.can_run_list[-1])
            if result is not AddReqResult.CONTINUE:
                self._refuse_next(adder.budget)
                return

    def _offer(
        self,
        adder: PrefillAdder,
        req: Request,
        running: Sequence[Request],
        retract: Callable[[Request], None],
    ) -> AddReqResult:
        """Try to add a request, if need be at the cost of those it may preempt."""
        result = self._try_add(adder, req)
        if result is not AddReqResult.NO_TOKEN or req.lease is not None:
            return result
        victims = self._victims(req, adder, running)
        for victim in victims:
            retract(victim)
        return self._try_add(adder, req) if victims else result

    def _refuse_next(self, budget: PrefillBudget) -> None:
        """Say to whoever is next that others have spent the budget."""
        if self.recorder.is_on and (req := self.waiting_queue.first()):
            what, left = budget.spent()
            refuse(self.recorder, req, budget.state(), what, 1, left)

    def _try_add(self, adder: PrefillAdder, req: Request) -> AddReqResult:
        if not self.leases.table.available_size:
            no_token = AddReqResult.NO_TOKEN
            return refuse(self.recorder, req, no_token, "max_running_requests", 1, 0)
        result = adder.add_one_req(req)
        if result is AddReqResult.NO_TOKEN and self.leases.is_idle:
            return adder.add_alone(req)
        return result

    def _victims(
        self, req: Request, adder: PrefillAdder, running: Sequence[Request]
    ) -> list[Request]:
        if self.preemption_threshold is None:
            return []
        return preempt_to_schedule(req, adder.budget, running, self.preemption_threshold)
