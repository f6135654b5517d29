"""Stale outputs: tokens in flight when their request is preempted still count (vLLM's rule).

Without this feature a row of an earlier lease is dropped, and its token is computed again under the
request's next lease. That is always right, and costs the row. vLLM delivers the token instead
(``v1/core/sched/scheduler.py``, #48245): it was computed before the lease was lost, so it is right.
Two other ways of counting failed (#42043, #42117, #47900). A flag dropped one output where two were
in flight. A flag set with nothing in flight dropped the first output after the resumption.

A retraction marks all positions in flight as stale. Each step that comes back subtracts its share.
A stale token is delivered, but no length moves. While a request has stale positions in flight, the
waiting queue holds it: resumed now, it would compute positions again that steps in flight compute.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core import Outputs, Request, Result, ScheduleBatch
from ..core.feature import Feature
from ..core.part import RequestPart
from ..policy.waiting import WaitingQueue
from ..scheduler import Scheduler


@dataclass(eq=False)
class InFlight(RequestPart):
    """The positions of one request that launched steps compute."""

    num_tokens: int = 0
    num_stale: int = 0  # those launched before it lost its lease
    keeps_late = True

    @property
    def is_held(self) -> bool:  # type: ignore[override]
        """Return whether stale positions are in flight."""
        return self.num_stale > 0

    def on_retract(self) -> None:
        """Mark all positions in flight as stale, with those that were stale already."""
        self.num_stale = self.num_tokens


@dataclass(eq=False)
class StaleOutputs(Feature):
    """Counts the positions in flight of each request, and resumes it when no stale one is left."""

    keeps_late = True
    waiting_queue: WaitingQueue | None = None
    drained: list[Request] = field(default_factory=list)  # by the step that has just come back

    def attach(self, scheduler: Scheduler) -> None:
        """Take the queue through which requests are resumed."""
        self.waiting_queue = scheduler.waiting_queue

    def part_of(self, req: Request) -> InFlight:
        """Return the part of a request; each request has one."""
        return InFlight()

    def on_commit(self, batch: ScheduleBatch) -> None:
        """Count the positions of the step as in flight."""
        for req, ids in zip(batch.reqs, batch.ids, strict=True):
            in_flight(req).num_tokens += len(ids)

    def on_return(self, batch: ScheduleBatch) -> None:
        """Subtract the positions of the step."""
        self.drained = []
        for req, ids in zip(batch.reqs, batch.ids, strict=True):
            part = in_flight(req)
            part.num_tokens -= len(ids)
            if part.num_stale:
                part.num_stale -= len(ids)
                if not part.num_stale:
                    self.drained.append(req)

    def on_result(self, batch: ScheduleBatch, result: Result, outputs: Outputs) -> None:
        """Resume each request that has no stale position in flight any more."""
        assert self.waiting_queue is not None
        for req in self.drained:
            if not req.finished:
                self.waiting_queue.add(req)


def in_flight(req: Request) -> InFlight:
    """Return the part of a request that counts its positions in flight."""
    part = req.part(InFlight)
    assert part is not None
    return part
