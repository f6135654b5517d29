"""What would remove the largest bubble, and what the run would have taken then: replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...trace import Trace
from .bubble_words import milliseconds
from .bubbles import Bubble, by_cause, by_phase
from .course import Course, course_of
from .what_if import Change, free, launch_ahead, makespan, makespan_of, sample_at_once

AHEAD = (
    "launch each step before the one before it is processed, and keep its tokens on the device "
    "(overlap)"
)
BY_HOST = ("host", "token", "copy", "prefill")  # a launch that comes earlier hides these
BY_PHASE = (*BY_HOST, "mask", "grammar", "penalty", "upload", "transfer", "speculation")


@dataclass(frozen=True)
class Removal:
    """A change, and the makespan with it, in nanoseconds; the batches stay as they were."""

    change: str
    ns: int
    was_ns: int


@dataclass(frozen=True)
class Largest:
    """The cause that took most, the phase in it that did, and changes to it, the best first."""

    cause: str
    phase: str
    ns: int
    percent: float  # of the bubbles
    removals: tuple[Removal, ...]

    @property
    def sentence(self) -> str:
        """``Most idle time has the cause host (25 ms, 69 %), above all schedule; ...``"""
        start = f"Most idle time has the cause {self.cause} "
        start += f"({milliseconds(self.ns)}, {self.percent:.0f} %)"
        start += f", above all {self.phase}" if self.phase else ""
        if not self.removals:
            return f"{start}; no change to this trace would say what it costs."
        best = self.removals[0]
        return (
            f"{start}; {best.change}: {milliseconds(best.ns)} "
            f"instead of {milliseconds(best.was_ns)}."
        )


def largest_bubble(
    trace: Trace, found: list[Bubble], course: Course | None = None
) -> Largest | None:
    """The largest cause and its remedies; None where no device idled.

    A remedy that another order gives comes before one that makes work free, where it gains at
    least as much.
    """
    causes = by_cause(found)
    if not causes:
        return None
    cause = next(iter(causes))
    phases = {phase: ns for (of, phase), ns in by_phase(found).items() if of == cause}
    phase = next(iter(phases))
    course = course or course_of(trace)
    was = makespan_of(course.ran)
    tried = [Removal(name, ns, was) for name, ns in _tried(trace, course, cause, phase)]
    better = sorted((item for item in tried if item.ns < was), key=lambda item: item.ns)
    percent = 100 * causes[cause] / sum(causes.values())
    return Largest(cause, phase, causes[cause], percent, tuple(better))


def _tried(trace: Trace, course: Course, cause: str, phase: str) -> Iterator[tuple[str, int]]:
    changes: list[tuple[str, Change]] = []
    if cause in BY_HOST:
        changes.append((AHEAD, launch_ahead))
    if cause in ("grammar", "penalty"):
        changes.append((f"sample without waiting for the {cause}", sample_at_once(trace, cause)))
    if cause in BY_PHASE and phase:
        changes.append((f"let {phase} take no time", free(phase)))
    for name, change in changes:
        if (lanes := change(course)) is not None:
            yield name, makespan(lanes)
