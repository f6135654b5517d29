"""What happens when decoding runs out of pages: somebody gives theirs back and starts again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..core import Request
from ..memory import LeasePool
from ..trace import Recorder
from .decode import DecodeManager
from .prefill import PrefillManager


def choose_victim(candidates: Iterable[Request]) -> Request:
    """The request with the fewest outputs; among equals the longest prompt, then the newest.

    SGLang ``schedule_batch.py:retract_decode`` sorts the same way: the least work is lost.
    """
    return min(candidates, key=lambda req: (len(req.output_ids), -len(req.prompt), -req.order))


@dataclass
class Retraction:
    """Makes room for the next decode step (SGLang ``schedule_batch.py:retract_decode``).

    A victim's pages come back only when no launched step names them, so the step that starved may
    have to wait for them. Until it has run, or nothing is in flight, ``starved`` keeps everybody
    from being admitted: else the victim itself would take the pages again, for ever
    (vllm-ascend #16315).
    """

    decode: DecodeManager
    prefill: PrefillManager
    leases: LeasePool
    recorder: Recorder
    starved: bool = False

    def pages_short(self, reqs: Sequence[Request]) -> int:
        """Pages that one more position for each of ``reqs`` needs beyond those that are free."""
        pages_for = self.leases.allocator.pages_for
        need = sum(pages_for(req.device_len) - len(req.lease.pages) for req in reqs if req.lease)
        return need - self.leases.allocator.available_pages

    def make_room(self, reqs: list[Request]) -> list[Request]:
        """Retract until the next step has pages; who is left in it, or nobody if it must wait."""
        while (short := self.pages_short(reqs)) > 0:
            chunked = self.prefill.chunked_req
            nobody_else = len(self.decode.running_reqs) + bool(chunked) <= 1
            if nobody_else or short <= self.leases.pages_returning:
                self.starved = True
                return []
            victim = chunked.req if chunked else choose_victim(self.decode.running_reqs)
            self.retract(victim)
            reqs = [req for req in reqs if req is not victim]
        self.starved = self.starved and not reqs
        return reqs

    def retract(self, req: Request) -> None:
        """Take a request's memory and put it, with what it has produced, first in the queue."""
        self.recorder.mark("retraction", rid=req.rid)
        if req.lease is not None:
            self.leases.close(req.lease)
        self.prefill.remove_req(req)
        self.decode.remove_req(req)
        req.restart()
        self.prefill.pending_list.insert(0, req)
