"""The time of a run with one change: the run is played again, as a program.

Unchanged it takes exactly the recorded time. The batches stay as they were, because another
schedule is not known. The same program shows what an op waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..trace import Slice, Trace
from ..trace.events import is_forward, is_host
from .history import kept
from .overlap import is_blocked

# -- Replay the lanes of a run: each item starts as soon as its predecessors allow -----------------


@dataclass(slots=True)  # there are a million of them in a large trace
class Item:
    """One item of a lane; times in nanoseconds.

    It is one of four kinds. ``run`` takes time (after its launch, if it has one). ``wait`` holds
    its lane until another item has ended or its signal was given. ``launch`` lets another item
    start. ``say`` gives a signal.

    ``play`` sets the rest from the recorded times. ``lane_lag`` and ``launch_lag`` (0 or less) are
    how much an item started before its lane was free, or before its launch was over: on a wall
    clock an op starts while its launch still runs. ``delay`` is how much it started after both.
    ``release`` is its earliest start, for a request that arrives from outside.
    """

    kind: str
    id: int
    duration: int = 0
    lane_lag: int = 0
    launch_lag: int = 0
    delay: int = 0
    release: int = 0


Lanes = dict[str, list[Item]]


class Ran(NamedTuple):
    """The times of an item; ``after`` is the item that delayed it last, until ``ready``."""

    start: int
    end: int
    after: int
    ready: int


def play(lanes: Lanes, recorded: Mapping[int, Slice] | None = None) -> Iterator[tuple[int, Ran]]:
    """Yield when each ``run`` item runs, by id; lane by lane, each as far as it can go.

    With the ``recorded`` slices, lags, delays and releases are set so that it runs as recorded.
    """
    every = [item for items in lanes.values() for item in items]
    will_end = {item.id for item in every if item.kind in ("run", "say")}
    will_launch = {item.id for item in every if item.kind == "launch"}
    launched: dict[int, tuple[int, int]] = {}  # by item: the time, and the item before
    ended: dict[int, tuple[int, int]] = {}
    free = {lane: (0, 0) for lane in lanes}
    here, goes_on = dict.fromkeys(lanes, 0), True
    while goes_on:
        goes_on = False
        for lane, items in lanes.items():
            (time, after), at = free[lane], here[lane]
            while at < len(items):
                item = items[at]
                if item.kind == "run":
                    if item.id in will_launch and item.id not in launched:
                        break
                    launch, launcher = launched.get(item.id, (0, 0))
                    if recorded is not None:
                        start = recorded[item.id].start
                        item.lane_lag, item.launch_lag = (
                            min(0, start - time),
                            min(0, start - launch),
                        )
                    by_lane, by_launch = time + item.lane_lag, launch + item.launch_lag
                    ready = max(by_lane, by_launch)
                    if recorded is not None and recorded[item.id].name == "receive":
                        item.release = start if start > ready else 0
                    elif recorded is not None:
                        item.delay = start - ready
                    start = max(ready + item.delay, item.release)
                    end = start + item.duration
                    held_by = launcher if by_launch > by_lane else after
                    yield item.id, Ran(start, end, held_by, ready)
                    time, after = ended[item.id] = end, item.id
                elif item.kind == "launch":
                    launched[item.id] = time, after
                elif item.kind == "say":
                    ended[item.id] = time, after
                elif item.id in ended:
                    time, after = max((time, after), ended[item.id], key=lambda it: it[0])
                elif item.id in will_end:
                    break
                at += 1
            goes_on |= at > here[lane]
            free[lane], here[lane] = (time, after), at


# -- A recorded run as a program: the items of each lane, in its own order, with their times -------


class Course(NamedTuple):
    """Items by lane, the slices of ``run`` items, and the times of each."""

    slices: dict[int, Slice]
    lanes: Lanes
    ran: dict[int, Ran]


@kept
def course_of(trace: Trace) -> Course:
    """Return the course of a recorded run, from its program, or from edges if it has none.

    From edges, some reasons of an op's delay may be missing.
    """
    slices = {item.id: item for item in trace.slices if not is_blocked(item)}
    lanes = from_program(trace, slices) if trace.program else from_edges(trace, slices)
    return Course(slices, lanes, dict(play(lanes, slices)))


def from_program(trace: Trace, slices: dict[int, Slice]) -> Lanes:
    """Return lanes from the program of each; slices of the host come before their acts."""
    started = {act.op for act in trace.program if act.kind == "begin"}
    own: defaultdict[str, list[Slice]] = defaultdict(list)  # in order of time, the newest first
    for item in sorted(slices.values(), key=lambda item: (item.start, item.id), reverse=True):
        if item.id not in started:
            own[item.lane].append(item)
    lanes: Lanes = defaultdict(list)
    done: set[int] = set()
    for act in trace.program:
        lane = slices[act.during].lane if act.during in slices else act.lane
        is_own = act.during in slices and act.during not in started
        while is_own and act.during not in done and own[lane]:
            done.add(own[lane][-1].id)
            lanes[lane].append(_run(own[lane].pop()))
        if act.kind == "begin" and act.op in slices:
            lanes[slices[act.op].lane].append(_run(slices[act.op]))
        elif act.kind in ("launch", "wait", "say"):
            lanes[lane].append(Item(act.kind, act.op))
    for lane, rest in own.items():
        lanes[lane] += [_run(item) for item in reversed(rest)]
    return lanes


def from_edges(trace: Trace, slices: dict[int, Slice]) -> Lanes:
    """Return lanes from intervals and edges alone: a lane runs its slices in order."""
    sources: defaultdict[int, list[int]] = defaultdict(list)
    for edge in trace.edges:
        src, dst = slices.get(edge.src), slices.get(edge.dst)
        if src and dst and src.start <= dst.start:
            sources[edge.dst].append(edge.src)
    lanes: Lanes = defaultdict(list)
    for item in slices.values():
        lanes[item.lane] += [Item("wait", src) for src in sources[item.id]]
        lanes[item.lane].append(_run(item))
    return lanes


def _run(item: Slice) -> Item:
    return Item("run", item.id, item.duration)


# -- The path of an op's waiting: back from its start, always along the last cause -----------------


class Segment(NamedTuple):
    """A part of a path, in nanoseconds; ``slice`` 0: no recorded slice ran then.

    ``before`` is the slice that started at its end, and had waited for it; 0 at the very end.
    """

    start: int
    end: int
    slice: int
    before: int


def path_to(ran: Mapping[int, Ran], number: int, since: int) -> Iterator[Segment]:
    """Yield the path of a slice's waiting back to the moment ``since``, the newest segment first.

    The segments make up the whole time from there to its start. One may have no length: an item
    that takes no time can delay others too.
    """
    at = ran[number].start
    while at > since:
        now = ran[number]
        ready = max(now.ready, since)
        if ready < at:
            yield Segment(ready, at, 0, number)
            at = ready
        if not now.after:
            if at > since:
                yield Segment(since, at, 0, number)
            return
        start = max(since, min(at, ran[now.after].start))
        yield Segment(start, at, now.after, number)
        at, number = start, now.after


# -- Changes: the new course for each, or None if there is nothing to change -----------------------

AFTERWARDS = frozenset({"process", "postprocess", "output"})  # phases that a launch can overtake


def makespan(lanes: Lanes) -> int:
    """Return when the last item ends, in nanoseconds."""
    return max((ran.end for _, ran in play(lanes)), default=0)


def free(course: Course, name: str) -> Lanes | None:
    """Let slices of one name (a phase of the host, or an op) take no time."""
    named = {item.id for item in course.slices.values() if item.name == name and item.duration}
    lanes = {
        lane: [
            replace(item, duration=0) if item.kind == "run" and item.id in named else item
            for item in items
        ]
        for lane, items in course.lanes.items()
    }
    return lanes if named else None


def launch_ahead(course: Course) -> Lanes | None:
    """Launch each step before its predecessor is processed, as ``overlap`` does.

    Its tokens then stay on the device. A step stays where it is if the host has to build its mask,
    because the mask needs the token. None where every step is launched ahead already, or where
    forward passes run on several lanes: there a step needs the token of the last stage.
    """
    slices = course.slices
    if len({item.lane for item in slices.values() if is_forward(item.lane)}) != 1:
        return None
    masked = {item.step for item in slices.values() if item.name == "mask"}
    moved = dict(course.lanes)
    for lane, items in course.lanes.items():
        if is_host(lane):
            moved[lane] = _overtaken(items, slices, masked)
    return None if moved == course.lanes else moved


def _overtaken(items: list[Item], slices: dict[int, Slice], stay: set[int]) -> list[Item]:
    """Return a lane on which the next step's launch comes before the work on each result."""
    done: list[Item] = []
    held: list[Item] = []  # items after a result, until the next step has been launched
    newest = passing = 0
    for item in items:
        here = slices.get(item.id)
        step, name = (here.step, here.name) if here else (0, "")
        is_over = passing and not (item.kind == "launch" and step == passing)
        if is_over or item.release:  # launched; or asleep until a request arrives
            done, held, passing = done + held, [], 0
        follows = item.kind == "wait" or (item.kind == "run" and name in AFTERWARDS)
        if follows and step and step == newest and step + 1 not in stay:
            held.append(item)
            continue
        done.append(item)
        if item.kind == "run" and name == "launch" and step > newest:
            newest, passing = step, step
    return done + held
