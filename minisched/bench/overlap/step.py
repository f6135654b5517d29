"""What a decode step took, read off the trace of a loop that took turns with others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import median

from ...checks.overlap.overlap import (
    Interval,
    device_busy,
    forwards,
    host_busy,
    intersection,
    length,
)
from ...devices.cost import MILLISECOND
from ...trace import Trace
from ..arm import SETTLING

ROUND = 5  # turns of a loop before it is the next one's turn
SKIPPED = 1  # step of a round, at its beginning: another loop's last step may still be running


@dataclass(frozen=True)
class Step:
    """What a step took, by the trace; ``both_ms`` is when host and device both worked."""

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

    def times(self, factor: float) -> Step:
        """The same on a machine that takes so many times as long."""
        return Step(*(factor * part for part in astuple(self)))


def steps_by_round(trace: Trace, rounds: int) -> list[Step]:
    """A step of each round: the mean of those that count."""
    starts = [item.start for item in forwards(trace)]
    device, host = device_busy(trace), host_busy(trace)
    both = intersection(device, host)
    steps = []
    for first in range(SETTLING + SKIPPED, SETTLING + SKIPPED + rounds * ROUND, ROUND):
        last = first + ROUND - SKIPPED - 1
        span: tuple[Interval, ...] = ((starts[first], starts[last]),)
        parts = (length(intersection(busy, span)) for busy in (span, device, host, both))
        steps.append(Step(*(part / (last - first) / MILLISECOND for part in parts)))
    return steps


def typical(rounds: Sequence[Step], beside: Sequence[Step]) -> Step:
    """The median of a loop's rounds, each of them at the usual speed.

    ``beside`` are the rounds of another loop, in turn with these: where the machine was slow, they
    took longer than their own median, and these are shortened by as much.
    """
    usual = median(step.whole_ms for step in beside)
    level = [
        astuple(step.times(usual / other.whole_ms))
        for step, other in zip(rounds, beside, strict=True)
    ]
    return Step(*map(median, zip(*level, strict=True)))
