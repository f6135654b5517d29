"""Races: two lanes touch the same memory, one of them writes, and nothing orders them.

Found from a trace's ``program`` by vector clocks, so it does not matter which of the two came first
this time. What orders two lanes: a launch comes before the op that it launches, a lane does one
thing after the other, an op's end comes before whoever waited for it, and what is said before
whoever waited for that.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..trace import Act, Trace
from ..trace.program import spans_of
from .vector_clock import VectorClock


@dataclass(frozen=True)
class Race:
    """Two acts that nothing orders; ``first`` is the one that was found first."""

    resource: str
    cell: int
    first: Act
    second: Act

    def __str__(self) -> str:
        return (
            f"{self.resource} {self.cell}: {described(self.first)} and {described(self.second)} "
            "in no order"
        )


@dataclass
class Cell:
    """The newest access of each lane to one cell: its moment there, and the act."""

    reads: dict[str, tuple[int, Act]] = field(default_factory=dict)
    writes: dict[str, tuple[int, Act]] = field(default_factory=dict)  # and frees


class Detector:
    """Takes the acts lane by lane, each as soon as what it waits for has happened."""

    def __init__(self) -> None:
        self.clocks: defaultdict[str, VectorClock] = defaultdict(VectorClock)
        self.launched: dict[int, VectorClock] = {}
        self.ended: dict[int, VectorClock] = {}
        self.cells: defaultdict[tuple[str, int], Cell] = defaultdict(Cell)
        self.races: dict[tuple[str, str, str], Race] = {}  # the first by resource and two lanes

    def may_go_on(self, act: Act) -> bool:
        """Whether what an act comes after has happened."""
        if act.kind == "begin":
            return act.op in self.launched
        return act.kind != "wait" or act.op in self.ended

    def take(self, act: Act) -> None:
        """One act of one lane."""
        clock = self.clocks[act.lane]
        if act.kind == "begin":
            clock.join(self.launched[act.op])
        elif act.kind == "wait":
            clock.join(self.ended[act.op])
        moment = clock.tick(act.lane)
        if act.kind == "launch":
            self.launched[act.op] = clock.copy()
        elif act.kind in ("end", "say"):
            self.touch(act, "value", act.op, moment)
            self.ended[act.op] = clock.copy()
        for first, last in spans_of(act.at):
            for cell in range(first, last + 1):
                self.touch(act, act.resource, cell, moment)

    def touch(self, act: Act, resource: str, number: int, moment: int) -> None:
        """Compare an access with the newest ones of the other lanes, and remember it."""
        cell, clock = self.cells[resource, number], self.clocks[act.lane]
        is_read = act.kind == "read"
        for others in (cell.writes,) if is_read else (cell.writes, cell.reads):
            for lane, (at, other) in others.items():
                if lane != act.lane and not clock.knows(lane, at):
                    a, b = sorted((lane, act.lane))
                    self.races.setdefault((resource, a, b), Race(resource, number, other, act))
        (cell.reads if is_read else cell.writes)[act.lane] = moment, act


def find_races(trace: Trace) -> list[Race]:
    """The first race of each resource and pair of lanes; none where the trace has no program."""
    detector = Detector()
    for act in in_order(trace.program, detector):
        detector.take(act)
    return list(detector.races.values())


def in_order(program: Iterable[Act], detector: Detector) -> Iterable[Act]:
    """Acts so that each comes after what it waits for; what waits for ever is left out."""
    lanes: defaultdict[str, deque[Act]] = defaultdict(deque)
    for act in program:
        lanes[act.lane].append(act)
    moved = True
    while moved:
        moved = False
        for acts in lanes.values():
            while acts and detector.may_go_on(acts[0]):
                yield acts.popleft()
                moved = True


def described(act: Act) -> str:
    """An act in a few words."""
    who = f" for {act.rid}" if act.rid else ""
    verb = {"read": "reads", "write": "writes", "free": "frees"}.get(act.kind, act.kind)
    return f"{act.lane} {verb} it{who} (slice {act.op})"
