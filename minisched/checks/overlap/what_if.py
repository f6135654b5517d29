"""What a run would have taken with one thing changed: its course is changed and played again.

The batches stay as they were. What would have been scheduled otherwise, is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ...trace import Slice, Trace
from ...trace.events import is_forward, is_host
from .course import Course, course_of
from .replay import Item, Lanes, Ran, replayed_end
from .waits import waits

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
