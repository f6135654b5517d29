"""A settled decode step of a real run, read off its trace."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ...checks.overlap.overlap import device_busy, forwards, host_busy, intersection, length
from ...compare import fresh, run_to_end
from ...devices.cost import MILLISECOND, NO_COST
from ...devices.host_work import Way, done_by
from ..steady import SETTLED
from .hidden import Case


@dataclass(frozen=True)
class Step:
    """What a settled step took, by the trace; ``both_ms`` is when host and device both worked."""

    whole_ms: float
    device_ms: float
    host_ms: float
    both_ms: float

    @property
    def shorter_ms(self) -> float:
        """What could run beside the other: the shorter of host and device."""
        return min(self.device_ms, self.host_ms)

    @property
    def beside_percent(self) -> float:
        """How much of the shorter of host and device ran beside the longer."""
        return 100 * self.both_ms / self.shorter_ms if self.shorter_ms else 0.0


def step_of(case: Case, loop: str, work_ms: float, way: Way) -> Step:
    """Run the workload once; medians over its settled steps."""
    cost = NO_COST.with_host_work(round(work_ms * MILLISECOND))
    with done_by(way):
        requests = [fresh(request) for request in case.requests]
        run = run_to_end(loop, case.device, case.model, requests, case.config, cost)
    starts = [item.start for item in forwards(run.trace)][SETTLED:-SETTLED]
    device, host = device_busy(run.trace), host_busy(run.trace)
    spans = list(pairwise(starts))
    device_ms, host_ms, both_ms = (
        median(length(intersection(busy, (span,))) for span in spans) / MILLISECOND
        for busy in (device, host, intersection(device, host))
    )
    whole_ms = median(end - start for start, end in spans) / MILLISECOND
    return Step(whole_ms, device_ms, host_ms, both_ms)
