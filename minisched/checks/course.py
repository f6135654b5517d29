"""The course of a recorded run as a program: what each op and each slice waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..trace import Slice, Trace
from .history import kept
from .overlap import is_blocked

# -- Follow the lanes of a run: what each slice waited for -----------------------------------------


class Item(NamedTuple):
    """One item of a lane: ``run`` is a slice, which starts after its launch (if it has one).

    ``wait`` holds its lane until another item has ended or its signal was given. ``launch`` lets
    another item start. ``say`` gives a signal.
    """

    kind: str
    id: int


Lanes = dict[str, list[Item]]


class Ran(NamedTuple):
    """The times of a slice; ``after`` is the item that delayed it last, until ``ready``.

    On a wall clock an op starts while its launch still runs: then ``ready`` is its start.
    """

    start: int
    end: int
    after: int
    ready: int


def follow(lanes: Lanes, slices: Mapping[int, Slice]) -> Iterator[tuple[int, Ran]]:
    """Yield when each slice ran and what it waited for, lane by lane, each as far as it can go."""
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
                    start, end = slices[item.id].start, slices[item.id].end
                    launch, launcher = launched.get(item.id, (0, 0))
                    by_lane, by_launch = min(time, start), min(launch, start)
                    held_by = launcher if by_launch > by_lane else after
                    yield item.id, Ran(start, end, held_by, max(by_lane, by_launch))
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
    """The slices of a run, and for each one its times and what it waited for."""

    slices: dict[int, Slice]
    ran: dict[int, Ran]


@kept
def course_of(trace: Trace) -> Course:
    """Return the course of a recorded run, from its program, or from edges if it has none.

    From edges, some reasons of an op's delay may be missing.
    """
    slices = {item.id: item for item in trace.slices if not is_blocked(item)}
    lanes = from_program(trace, slices) if trace.program else from_edges(trace, slices)
    return Course(slices, dict(follow(lanes, slices)))


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
            lanes[lane].append(Item("run", own[lane].pop().id))
        if act.kind == "begin" and act.op in slices:
            lanes[slices[act.op].lane].append(Item("run", act.op))
        elif act.kind in ("launch", "wait", "say"):
            lanes[lane].append(Item(act.kind, act.op))
    for lane, rest in own.items():
        lanes[lane] += [Item("run", item.id) for item in reversed(rest)]
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
        lanes[item.lane].append(Item("run", item.id))
    return lanes


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
