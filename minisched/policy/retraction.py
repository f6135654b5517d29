"""When memory runs out: who gives up theirs so that the others can go on, and starts again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .admission import PrefillManager

RETRACT_DECODE_STEPS = 20  # for which those who stay have memory after a retraction, if they may


@dataclass
class Retraction:
    """Makes room for the next decode step (SGLang ``schedule_batch.py:retract_decode``).

    What is cached goes first, then a request. A victim's pages come back only when no launched
    step names them, so the step that starved may have to wait for them: nobody else is retracted
    while what is on its way back (``pages_returning``) is enough. Else everybody would be, one
    after the other, and for ever (vllm-ascend #16315). Until that step has run, or nothing is in
    flight, ``starved`` keeps everybody from being admitted: else the victim itself would take the
    pages again. Nor is anybody retracted while one who runs is about to end, its last step in
    flight; that step over, all begins anew.
    """

    running_reqs: dict[Request, None]  # those who decode
    is_ending: Callable[[Request], bool]  # whether every step of a request is launched
    on_retraction: Callable[[Collection[Request]], None]  # hears who was kept
    prefill: PrefillManager
    leases: LeasePool
    recorder: Recorder
    choose_victim: Callable[[Iterable[Request]], Request]
    evicts_ahead: bool = True  # the cache gives up more than the next step lacks
    starved: bool = False
    num_retractions: int = 0  # how often somebody has lost their memory so far
    num_by_reason: Counter[str] = field(default_factory=Counter)  # memory, priority, unified
    hopeless: list[Request] = field(default_factory=list)  # alone, and still too large

    def make_room(self, reqs: list[Request]) -> list[Request]:
        """Retract until the next step has pages; who is left in it, or nobody if it must wait."""
        retracted = False
        while (short := self.leases.pages_short(reqs)) > 0:
            chunked = self.prefill.chunked_req
            nobody_else = len(self.running_reqs) + bool(chunked) <= 1
            if nobody_else or short <= self.leases.pages_returning:
                reqs = self.wait(reqs)
                break
            if any(map(self.is_ending, self.running_reqs)):
                reqs = []  # its memory will come back
                break
            if self.evicts_ahead:
                self.leases.make_free(short + self.leases.available_pages)
            victim = chunked or self.choose_victim(self.running_reqs)
            self.retract(victim, "memory")
            retracted = True
            reqs = [req for req in reqs if req is not victim]
        if retracted:
            self.on_retraction(self.running_reqs)
        self.starved = self.starved and not reqs
        return reqs

    def wait(self, reqs: list[Request]) -> list[Request]:
        """Let a step wait for memory; one that waits for nothing can never run."""
        self.starved = True
        newest = max((req.lease.last_step for req in reqs if req.lease is not None), default=0)
        if not self.leases.returning and newest <= self.leases.returned_step:
            self.hopeless = list(reqs)
        return []

    def retract(self, req: Request, reason: str) -> None:
        """Take a request's memory and put it back into the queue, with what it has produced."""
        lease = req.lease
        pages = self.leases.pages_given_back(lease) if lease else 0
        self.recorder.mark(
            "retraction", rid=req.rid, reason=reason, outputs=len(req.output_ids), pages=pages
        )
        self.num_retractions += 1
        self.num_by_reason[reason] += 1
        self.prefill.remove_req(req)
        self.running_reqs.pop(req, None)
        req.restart()
        if lease is not None:
            self.leases.close(lease)
        if self.evicts_ahead:
            steps = RETRACT_DECODE_STEPS * len(self.running_reqs)
            pages = self.leases.allocator.pages_for(steps)
            self.leases.make_free(pages - self.leases.pages_returning)
        self.prefill.waiting_queue.add(req)
