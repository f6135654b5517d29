"""The moments of a run at which something begins or ends, and where its steps begin."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from ..trace import Trace
from ..trace.events import is_forward


@dataclass(frozen=True)
class Moments:
    """Times in nanoseconds, in order; ``steps`` are those at which a device begins a step."""

    times: tuple[int, ...]
    steps: tuple[int, ...]

    def after(self, time: int) -> int:
        """The next one; the last has none."""
        return self.times[min(bisect_right(self.times, time), len(self.times) - 1)]

    def before(self, time: int) -> int:
        """The one before; the first has none."""
        return self.times[max(bisect_left(self.times, time) - 1, 0)]

    def next_step(self, time: int) -> int:
        """Where the next step begins, or the end of the run."""
        at = bisect_right(self.steps, time)
        return self.steps[at] if at < len(self.steps) else self.times[-1]

    def previous_step(self, time: int) -> int:
        """Where the step before began, or the beginning of the run."""
        at = bisect_left(self.steps, time)
        return self.steps[at - 1] if at else self.times[0]

    def at(self, time: int) -> int:
        """The last one that is not after a time."""
        return self.times[max(bisect_right(self.times, time) - 1, 0)]

    def number(self, time: int) -> int:
        """Which one it is, counted from 1."""
        return bisect_right(self.times, time)

    def spread(self, first: int, count: int) -> list[int]:
        """At most ``count`` of them, from ``first`` to the last, evenly."""
        times = self.times[bisect_left(self.times, first) :] or self.times[-1:]
        last = min(count, len(times)) - 1
        return [times[at * (len(times) - 1) // max(1, last)] for at in range(last + 1)]


def moments_of(trace: Trace) -> Moments:
    """The moments of a run.

    Raises:
        ValueError: nothing ran.
    """
    if not trace.slices:
        raise ValueError("the trace has no slice, so there is nothing to watch.")
    times = {time for item in trace.slices for time in (item.start, item.end)}
    steps: dict[tuple[str, int], int] = {}
    for item in trace.slices:
        if item.name == "forward" and is_forward(item.lane):
            pipeline = "stage" if item.lane.startswith("stage ") else item.lane
            steps.setdefault((pipeline, item.step), item.start)
    return Moments(tuple(sorted({0} | times)), tuple(sorted(set(steps.values()))))
