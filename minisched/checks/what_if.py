"""What a run would have taken with one thing changed: its course is changed and played again.

The batches stay as they were. What would have been scheduled otherwise, is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ..trace import Slice, Trace
from ..trace.events import is_forward, is_host
from .causes import ARRIVAL, Bubble, OverlapVerdict, by_cause, by_phase, overlap_verdict, waits
from .overlap import Course, Item, Lanes, Ran, course_of, milliseconds, replayed_end

# -- What would remove the largest bubble, and what the run would have taken then: replayed --------

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
    trace: Trace,
    found: list[Bubble],
    course: Course | None = None,
    said: OverlapVerdict | None = None,
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
    trace: Trace, course: Course, said: OverlapVerdict, cause: str, phase: str
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


def _which(said: OverlapVerdict) -> str:
    """The steps that were launched late, as far as there are others."""
    if not said.ahead or not said.late:
        return "each step"
    if len(said.late) > MOST_NAMED:
        return f"the {len(said.late)} late steps, too, each"
    *most, last = map(str, said.late)
    return f"steps {', '.join(most)} and {last}, too, each" if most else f"step {last}, too,"


Change = Callable[[Course], Lanes | None]
AFTERWARDS = frozenset({"process", "postprocess", "output"})  # phases that a launch can overtake


def what_if(trace: Trace, change: Change) -> int | None:
    """The makespan in nanoseconds with a change; None where there is nothing to change."""
    lanes = change(course_of(trace))
    return None if lanes is None else makespan(lanes)


def makespan(lanes: Lanes) -> int:
    """When the last item ends, in nanoseconds."""
    return replayed_end(lanes)


def makespan_of(ran: Mapping[int, Ran]) -> int:
    """The same of lanes that have been played, in nanoseconds."""
    return max((item.end for item in ran.values()), default=0)


def unchanged(course: Course) -> Lanes:
    """The run as it was recorded."""
    return course.lanes


def free(name: str) -> Change:
    """Slices of one name (a phase of the host, or an op) take no time."""

    def change(course: Course) -> Lanes | None:
        if not any(item.name == name and item.duration for item in course.slices.values()):
            return None
        return {
            lane: [_without_time(item, course.slices, name) for item in items]
            for lane, items in course.lanes.items()
        }

    return change


def launch_ahead(course: Course) -> Lanes | None:
    """Each step is launched before the one before it is processed: what ``overlap`` does.

    Its tokens then stay on the device. A step whose mask the host has to build stays where it is:
    it needs the token. So does one that the host had scheduled in vain before: for want of memory,
    say, which only a result gives back. None where every step is launched ahead already, or where
    forward passes run on several lanes: there a step must not start before the last stage has its
    token.
    """
    if len({item.lane for item in course.slices.values() if is_forward(item.lane)}) != 1:
        return None
    masked = {item.step for item in course.slices.values() if item.name == "mask"}
    moved = {
        lane: _overtaken(items, course.slices, masked | _in_vain(items, course.slices))
        if is_host(lane) else items
        for lane, items in course.lanes.items()
    }  # fmt: skip
    return None if moved == course.lanes else moved


def sample_at_once(trace: Trace, reason: str) -> Change:
    """Ops that waited for ``reason`` are launched together with their step's forward pass."""

    def change(course: Course) -> Lanes | None:
        late = {(int(m.attrs["step"]), str(m.attrs["op"])) for m in waits(trace)
                if m.attrs["reason"] == reason}  # fmt: skip
        slices = course.slices
        steps = {step for step, op in late if op == "sample"}
        later = {i.id: i.step for i in slices.values() if i.step in steps and not is_host(i.lane)}
        lanes = {
            lane: [i for i in items if not (i.kind == "launch" and i.id in later
                                            and slices[i.id].name != "forward")]
            for lane, items in course.lanes.items()
        }  # fmt: skip
        return lanes if steps else None  # who is launched by nobody goes when its lane is free

    return change


def _without_time(item: Item, slices: dict[int, Slice], name: str) -> Item:
    is_named = item.kind == "run" and slices[item.id].name == name
    return replace(item, duration=0) if is_named else item


def _in_vain(items: list[Item], slices: dict[int, Slice]) -> set[int]:
    """The steps before whose launch a lane scheduled more than once: first, it found nothing."""
    found: set[int] = set()
    tries = 0
    for item in items:
        here = slices.get(item.id) if item.kind == "run" else None
        if here and here.name == "schedule":
            tries += 1
        elif here and here.name == "launch":
            if tries > 1:
                found.add(here.step)
            tries = 0
    return found


def _overtaken(items: list[Item], slices: dict[int, Slice], stay: set[int]) -> list[Item]:
    """A lane on which what follows each step's result comes after the next step's launch."""
    done: list[Item] = []
    held: list[Item] = []  # what follows a result, until the next step has been launched
    newest = passing = 0
    for item in items:
        here = slices.get(item.id)
        step = here.step if here else 0
        is_over = passing and not (item.kind == "launch" and step == passing)
        if is_over or item.release:  # launched; or asleep until somebody comes
            done, held, passing = done + held, [], 0
        is_after = (item.kind == "wait" and step == newest) or (
            item.kind == "run" and here is not None and here.name in AFTERWARDS and step == newest
        )
        if is_after and step and step + 1 not in stay:
            held.append(item)
            continue
        done.append(item)
        if item.kind == "run" and here is not None and here.name == "launch" and step > newest:
            newest, passing = step, step
    return done + held
