"""What each lane does, in its own order, and how long it takes: a recorded run as a program.

``replay.py`` plays it again. Unchanged it takes exactly as long as it was recorded to; with an item
changed, it says what the run would have taken (``what_if.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from ...trace import Slice, Trace
from ...trace.events import is_host
from .replay import Item, Lanes, Ran, calibrate, replay

WAIT = "wait"  # a slice of this name only says that its lane was blocked


@dataclass
class Course:
    """Items by lane, and the slices that ``run`` items are; what was recorded is never changed.

    ``is_ordered`` says whether the trace told what each lane did (``trace/program.py``); if not,
    edges have to do, and some of what held an op back may be missing.
    """

    slices: dict[int, Slice]
    lanes: Lanes
    is_ordered: bool
    end: int
    index: dict[tuple[str, int], list[int]] = field(default_factory=dict)

    @cached_property
    def ran(self) -> dict[int, Ran]:
        """When everything runs, as it was recorded."""
        return replay(self.lanes)

    def first_at(self, lane: str, start: int) -> int:
        """The slice that a lane starts with at a moment; 0: none."""
        if not self.index:
            for name, items in self.lanes.items():
                for item in items:
                    if item.kind == "run":
                        at = (name, self.slices[item.id].start)
                        self.index.setdefault(at, []).append(item.id)
        return next(iter(self.index.get((lane, start), [])), 0)


def course_of(trace: Trace) -> Course:
    """The course of a recorded run."""
    slices = {item.id: item for item in trace.slices if not is_blocked(item)}
    lanes = from_program(trace, slices) if trace.program else from_edges(trace, slices)
    calibrate(lanes, slices)
    return Course(slices, lanes, bool(trace.program), trace.end)


def is_blocked(item: Slice) -> bool:
    """Whether a slice is a thread of the host that waits."""
    return item.name == WAIT and is_host(item.lane)


def run(item: Slice) -> Item:
    """The item that a slice is."""
    return Item("run", item.id, item.duration)


def from_program(trace: Trace, slices: dict[int, Slice]) -> Lanes:
    """From what each lane said that it did; slices of the host come before what they did."""
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
            lanes[lane].append(run(own[lane].pop()))
        if act.kind == "begin" and act.op in slices:
            lanes[slices[act.op].lane].append(run(slices[act.op]))
        elif act.kind in ("launch", "wait", "say"):
            lanes[lane].append(Item(act.kind, act.op))
    for lane, rest in own.items():
        lanes[lane] += [run(item) for item in reversed(rest)]
    return lanes


def from_edges(trace: Trace, slices: dict[int, Slice]) -> Lanes:
    """From intervals and edges alone: a lane does one thing after the other."""
    sources: defaultdict[int, list[int]] = defaultdict(list)
    for edge in trace.edges:
        if edge.src in slices and slices[edge.src].start <= slices_start(slices, edge.dst):
            sources[edge.dst].append(edge.src)
    lanes: Lanes = defaultdict(list)
    for item in in_time(slices.values()):
        lanes[item.lane] += [Item("wait", src) for src in sources[item.id]]
        lanes[item.lane].append(run(item))
    return lanes


def slices_start(slices: dict[int, Slice], number: int) -> int:
    """When a slice started; one that is not there never comes after anything."""
    return slices[number].start if number in slices else -1


def in_time(slices: Iterable[Slice]) -> list[Slice]:
    """Slices in the order in which they began."""
    return sorted(slices, key=lambda item: (item.start, item.end, item.id))
