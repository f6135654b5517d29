"""Admission: which waiting prompts start now, and how much of each.

``PrefillManager`` offers the waiting requests in their order, until one is refused.
``PrefillAdder`` adds each of them to a batch, or records why it does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..core import Request
from ..memory import LeasePool, PrefixCache
from ..trace import Recorder
from .prefill_adder import AddReqResult, ChunkRule, PrefillAdder, Reserve, refuse
from .waiting import WaitingQueue

Retract = Callable[[Request], None]

Work = list[tuple[Request, int]]
"""Prompts, each with the number of tokens to compute."""

Plan = tuple[Work, list[Request]]
"""Prompts, and the requests that decode."""


@dataclass
class PrefillManager:
    """The waiting queue, and the one prompt that is being computed in chunks.

    Follows SGLang ``managers/scheduler.py:get_new_batch_prefill``; the class is mini-sglang's
    (``scheduler/prefill.py``). The first refused request stops all later ones.
    ``chunk_size`` None: no prompt is cut. ``preemption_threshold`` None: no request is preempted.
    """

    waiting_queue: WaitingQueue
    leases: LeasePool
    cache: PrefixCache
    recorder: Recorder
    chunk_size: int | None
    max_prefill_tokens: int
    reserve: Reserve
    chunks: ChunkRule
    preemption_threshold: int | None = None
    chunked_req: Request | None = None
    _full_at: int | None = field(default=None, init=False)  # leases released when it was full

    def schedule_next_batch(
        self,
        running: Sequence[Request],
        new_token_ratio: float,
        num_mixed_decode_tokens: int = 0,
        retract: Retract = lambda req: None,
    ) -> Work:
        """Return the next prefill batch: requests and how many of their tokens to compute.

        Opens a lease for each request that starts. A prompt that does not fit into the chunk
        becomes ``chunked_req``; no other request is admitted before it is computed.
        """
        if not (self.may_start and self._may_look()):
            return []
        waiting = self.waiting_queue.in_order()
        mixed = num_mixed_decode_tokens
        adder = PrefillAdder(
            self.leases, self.cache, self.recorder, running, new_token_ratio,
            self.max_prefill_tokens, self.chunk_size, mixed,
            reserve=self.reserve, chunks=self.chunks,
        )  # fmt: skip
        if self.recorder.is_on:
            self.recorder.mark("budget", mixed_decode_tokens=mixed, **adder.remains())
        self.go_on(adder)
        self.admit(waiting, adder, retract)
        return adder.can_run_list

    def go_on(self, adder: PrefillAdder) -> None:
        """Compute the next chunk of the prompt that has started, if there is one."""
        if self.chunked_req is not None:
            self._full_at = None  # a started prompt goes on, whatever was refused before
            if not adder.add_chunked_req(self.chunked_req):
                self.chunked_req = None

    @property
    def may_start(self) -> bool:
        """Return whether a prompt goes on, or one waits that may be admitted."""
        if self.chunked_req is not None:
            return True
        return bool(self.waiting_queue) and not self.batch_is_full

    @property
    def batch_is_full(self) -> bool:
        """Return whether no lease was released since the last refusal (``ask_again``)."""
        return self._full_at == self.leases.num_released

    def skip(self, reason: str) -> None:
        """Admit no request in this step, and record the reason for the first in the queue."""
        refuse(self.recorder, self.waiting_queue.first(), AddReqResult.OTHER, reason)

    def mark_full(self) -> None:
        """Admit no request before a lease is released (``ChunkRule.asks_every_step``)."""
        self._full_at = None if self.chunks.asks_every_step else self.leases.num_released

    def mark_open(self) -> None:
        """Look at the queue in the next step, whatever was refused in this one."""
        self._full_at = None

    def start(self, req: Request, extend_len: int) -> None:
        """Take an admitted request out of the queue; if it is cut, it becomes ``chunked_req``."""
        self.waiting_queue.remove(req)
        if extend_len < req.extend_len:
            self.chunked_req = req

    def remove_req(self, req: Request) -> None:
        """Drop one request from the queue and from its chunks."""
        if req in self.waiting_queue:
            self.waiting_queue.remove(req)
        if self.chunked_req is req:
            self.chunked_req = None

    def _may_look(self) -> bool:
        """Return whether a row is free, needed by no one new, or may be taken by preemption."""
        preempts = self.preemption_threshold is not None
        if self.leases.table.available_size or self.chunked_req is not None or preempts:
            return True
        if (first := self.waiting_queue.first()) is not None:
            self._no_row(first)
            self.mark_full()
        return False

    def admit(
        self,
        waiting: Iterator[Request],
        adder: PrefillAdder,
        retract: Retract = lambda req: None,
    ) -> None:
        """Admit waiting requests in order, until one is refused or the batch is full."""
        goes_on = self.chunked_req is not None
        needs_row = False  # once set, each further request needs a victim
        for req in waiting:
            state = adder.state()
            if state is AddReqResult.OTHER or (goes_on and state is AddReqResult.CONTINUE):
                break
            needs_row |= not self.leases.table.available_size
            may_try = not needs_row or self._make_way(req, adder, retract)
            result = self._try_add(adder, req) if may_try else self._no_row(req)
            preempts = self.preemption_threshold is not None
            if result is AddReqResult.NO_TOKEN and adder.running and not preempts:
                # In SGLang the flag belongs to ``running_batch``: it lasts while a request runs,
                # and is ignored where requests may be preempted.
                self.mark_full()
            if req.lease is None:
                return
            self.start(*adder.can_run_list[-1])
            if result is not AddReqResult.CONTINUE:
                break
        else:
            return
        what, left = adder.spent()  # by the admitted ones: the reason for the next request
        refuse(self.recorder, self.waiting_queue.first(), adder.state(), what, 1, left)

    def _make_way(self, req: Request, adder: PrefillAdder, retract: Retract) -> bool:
        """Preempt running requests for an urgent one; return whether any was."""
        if self.preemption_threshold is None:
            return False
        victims = adder.preempt_to_schedule(req, self.preemption_threshold)
        for victim in victims:  # its reserved memory is available
            adder.rem_total_token_offset -= self.reserve.kept_for(adder, victim)
            adder.running.remove(victim)
            retract(victim)
        return bool(victims)

    def _no_row(self, req: Request) -> AddReqResult:
        return refuse(self.recorder, req, AddReqResult.NO_TOKEN, "max_running_requests", 1, 0)

    def _try_add(self, adder: PrefillAdder, req: Request) -> AddReqResult:
        if not self.leases.table.available_size:
            return self._no_row(req)
        result = adder.add_one_req(req)
        may_come = self.chunks.admits_alone and self.leases.is_idle
        if result is AddReqResult.NO_TOKEN and may_come:
            return adder.add_alone(req)
        return result


# -- Decodes next to prompts -----------------------------------------------------------------------


def mix_with_running(prompts: Work, running: list[Request], leases: LeasePool) -> list[Request]:
    """The running requests to add to a prefill batch, with an extend length of 1 each.

    SGLang ``schedule_batch.py:ScheduleBatch.mix_with_running``. There is none if one of all these
    wants log-probabilities, or if memory does not suffice for all. Then the prompts run alone, and
    the running requests run in the next decode step.
    """
    reaches = [(req, req.computed_len + length) for req, length in prompts]
    reaches += [(req, leases.reach(req)) for req in running]
    need = sum(
        leases.pages_lacking(req.lease, reach) for req, reach in reaches if req.lease is not None
    )
    may_mix = all(part.may_mix for req, _ in reaches for part in req.parts)
    return running if may_mix and need <= leases.available_pages else []
