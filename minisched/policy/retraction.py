"""Retraction: if memory runs out, a request loses its lease and is recomputed later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .admission import PrefillManager
from .sglang import EvictAhead


@dataclass
class Retraction:
    """Makes room for the next decode step (SGLang ``schedule_batch.py:retract_decode``).

    Cached pages are evicted first; then a request is retracted. Its pages are released once no
    launched step refers to them, so the starved step may have to wait.

    - No further request is retracted while the pages being released suffice (``pages_returning``).
      Otherwise all requests would be retracted in turn (vllm-ascend #16315).
    - While ``starved``, no request is admitted: the victim would take the pages again. It ends when
      the starved step runs, or nothing is in flight.
    - No request is retracted while the last step of a running one is in flight.
    """

    running_reqs: dict[Request, None]  # the decoding requests
    is_ending: Callable[[Request], bool]  # returns whether every step of a request is launched
    on_retraction: Callable[[Collection[Request]], None]  # receives the kept requests
    prefill: PrefillManager
    leases: LeasePool
    recorder: Recorder
    choose_victim: Callable[[Iterable[Request]], Request]
    eviction: EvictAhead
    starved: bool = False
    num_retractions: int = 0  # so far
    num_by_reason: Counter[str] = field(default_factory=Counter)  # memory, priority, unified
    hopeless: list[Request] = field(default_factory=list)  # alone, and still too large

    def make_room(self, reqs: list[Request]) -> list[Request]:
        """Retract until the next step has pages; return its requests, or none if it must wait."""
        retracted = False
        while (short := self.leases.pages_short(reqs)) > 0:
            chunked = self.prefill.chunked_req
            nobody_else = len(self.running_reqs) + bool(chunked) <= 1
            if nobody_else or short <= self.leases.pages_returning:
                reqs = self.wait(reqs)
                break
            if any(map(self.is_ending, self.running_reqs)):
                reqs = []  # its memory will be released
                break
            self.eviction.before_retraction(self.leases, short)
            victim = chunked or self.choose_victim(self.running_reqs)
            self.retract(victim, "memory")
            retracted = True
            reqs = [req for req in reqs if req is not victim]
        if retracted:
            self.on_retraction(self.running_reqs)
        self.starved = self.starved and not reqs
        return reqs

    def wait(self, reqs: list[Request]) -> list[Request]:
        """Let a step wait for memory; with nothing in flight its requests are ``hopeless``."""
        self.starved = True
        newest = max((req.lease.last_step for req in reqs if req.lease is not None), default=0)
        if not self.leases.returning and newest <= self.leases.returned_step:
            self.hopeless = list(reqs)
        return []

    def retract(self, req: Request, reason: str) -> None:
        """Close a request's lease and queue it again; it keeps its outputs."""
        lease = req.lease
        pages = self.leases.pages_given_back(lease) if lease else 0
        self.recorder.mark(
            "retraction", rid=req.rid, reason=reason, outputs=len(req.output_ids), pages=pages
        )
        self.num_retractions += 1
        self.num_by_reason[reason] += 1
        self.prefill.remove_req(req)
        self.running_reqs.pop(req, None)
        restart(req)
        if lease is not None:
            self.leases.close(lease)
        self.eviction.after_retraction(self.leases, len(self.running_reqs))
        self.prefill.waiting_queue.add(req)


def restart(req: Request) -> None:
    """Forget the computed positions of a request, and keep its known tokens."""
    # The prefix that it found in the cache may be evicted by then.
    req.admission.asked_len += req.admission.hit_len
    req.lease = None
    req.computed_len = 0
    req.device_len = req.known_len
    req.admission.retractions += 1
    for part in req.parts:
        part.on_retract()
