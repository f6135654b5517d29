"""What would remove the largest bubble, and what the run would have taken then: replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...trace import Trace
from .bubble_words import milliseconds
from .bubbles import Bubble, by_cause, by_phase
from .course import Course, course_of
from .verdict import Verdict, overlap_verdict
from .waits import ARRIVAL
from .what_if import Change, free, launch_ahead, makespan, makespan_of, sample_at_once

AHEAD = (
    "launch {which} before the one before it is processed, and keep its tokens on the device "
    "(overlap)"
)
MOST_NAMED = 5  # steps
BY_HOST = (
    "host",
    "host wait",
    "token",
    "copy",
    "prefill",
)  # a launch that comes earlier hides these
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
        if self.cause == ARRIVAL:
            why = "what idled had no request to serve, and only more of them would fill that time"
            return f"{start}: {why}."
        if not self.removals:
            return f"{start}; replaying cannot tell what removing this would save."
        best = self.removals[0]
        return (
            f"{start}; {best.change}, and the run takes {milliseconds(best.ns)} "
            f"instead of {milliseconds(best.was_ns)}."
        )


def largest_bubble(
    trace: Trace, found: list[Bubble], course: Course | None = None, said: Verdict | None = None
) -> Largest | None:
    """The largest cause and its remedies; None where no device idled.

    ``course`` and ``said`` (the verdict) are those of the trace, if they are there already. A
    remedy that another order gives comes before one that makes work free, where it gains at
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
    said = said or overlap_verdict(trace)
    tried = [Removal(name, ns, was) for name, ns in _tried(trace, course, said, cause, phase)]
    better = sorted((item for item in tried if item.ns < was), key=lambda item: item.ns)
    percent = 100 * causes[cause] / sum(causes.values())
    return Largest(cause, phase, causes[cause], percent, tuple(better))


def _tried(
    trace: Trace, course: Course, said: Verdict, cause: str, phase: str
) -> Iterator[tuple[str, int]]:
    changes: list[tuple[str, Change]] = []
    if cause in BY_HOST or (cause == "unknown" and said.late):  # late all the same, whatever it did
        changes.append((AHEAD.format(which=_which(said)), launch_ahead))
    if cause in ("grammar", "penalty"):
        changes.append((f"sample without waiting for the {cause}", sample_at_once(trace, cause)))
    if cause in BY_PHASE and phase:
        changes.append((f"let {phase} take no time", free(phase)))
    for name, change in changes:
        if (lanes := change(course)) is not None:
            yield name, makespan(lanes)


def _which(said: Verdict) -> str:
    """The steps that were launched late, as far as there are others."""
    if not said.ahead or not said.late:
        return "each step"
    if len(said.late) > MOST_NAMED:
        return f"the {len(said.late)} late steps, too, each"
    *most, last = map(str, said.late)
    return f"steps {', '.join(most)} and {last}, too, each" if most else f"step {last}, too,"
