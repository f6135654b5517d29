"""Takes what every lane did, one act after the other, and finds what no edge orders.

The rules, Lamport's happens-before by vector clocks:

- a lane does one thing after the other;
- a launch comes before the op that it launches;
- an op's end, or what was said, comes before whatever follows on a lane that waited for it.

Two accesses to one cell are a race if they come from two lanes, one of them is no read, and neither
comes before the other. A free counts as a write: whoever touches what it frees in no order with it
races with it. A read behind a free is a use after free, unless somebody has written the cell since:
whoever writes it is its next owner, and that is no race if the write comes behind the free. Two
frees with nothing between them are not told of: memory may be had and given back unused, and a real
double free is the allocator's to refuse (``memory/page_allocator.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...trace import Act
from ...trace.cells import Span
from .access_log import Access, AccessLog, Point
from .newest import Newest
from .spans import cached_spans
from .vector_clock import VectorClock

VALUE = "value"  # what an op gives: written by its end, read by the ops that take it


@dataclass
class Pair:
    """Two accesses that are in each other's way, in the order in which they were taken."""

    kind: str  # "race" or "use after free"
    first: Access
    second: Access
    cells: list[Span] = field(default_factory=list)


@dataclass
class Memory:
    """What is known of one resource: who touched it, by lane and whether they read; what is free.

    ``lanes`` are all that ever touch it.
    """

    lanes: set[str] = field(default_factory=set)
    logs: dict[tuple[str, bool], AccessLog] = field(default_factory=dict)
    freed: Newest[Access] = field(default_factory=Newest)


class Detector:
    """``take`` gets the acts of a program, in any order that can happen, and finds ``pairs``."""

    def __init__(self, program: Iterable[Act]) -> None:
        self.clocks: defaultdict[str, VectorClock] = defaultdict(VectorClock)
        self.launched: dict[int, Point] = {}
        self.ended: dict[int, VectorClock] = {}
        self.memory: defaultdict[str, Memory] = defaultdict(Memory)
        self._pairs: dict[tuple[str, str, int, str, int], Pair] = {}
        for act in program:
            resource = VALUE if act.kind == "end" else act.resource
            self.memory[resource].lanes.add(act.lane)

    @property
    def pairs(self) -> list[Pair]:
        """Every pair of accesses found, in the order of the second one."""
        return list(self._pairs.values())

    def take(self, act: Act) -> None:
        """One act of one lane; what it comes after has been taken."""
        clock = self.clocks[act.lane]
        if act.kind == "begin":
            clock.join(self.launched[act.op].clock)
        elif act.kind == "wait":
            clock.join(self.ended[act.op])
        moment = clock.tick(act.lane)
        if act.kind == "launch":
            self.launched.setdefault(act.op, Point(act.lane, moment, clock.copy()))
        elif act.kind == "end":
            self._touch(Act(act.lane, "write", act.op, VALUE, str(act.op)), moment)
        elif act.at:
            self._touch(act, moment)
        if act.kind in ("end", "say"):
            self.ended.setdefault(act.op, clock.copy())

    def _touch(self, act: Act, moment: int) -> None:
        clock, memory = self.clocks[act.lane], self.memory[act.resource]
        decided = self.launched.get(act.op) or Point(act.lane, moment, clock.copy())
        access, is_read = Access(act, moment, decided), act.kind == "read"
        self._look_at_frees(access, memory)
        others = memory.lanes - {act.lane}
        if not others:
            return
        for (lane, was_read), log in memory.logs.items():
            is_conflict = lane != act.lane and not (is_read and was_read)
            if is_conflict and not clock.knows(lane, log.latest):
                for other, span in log.unknown(cached_spans(act.at), clock.get(lane, 0)):
                    self._found("race", other, access, span)
        if (act.lane, is_read) not in memory.logs:
            memory.logs[act.lane, is_read] = AccessLog()
        memory.logs[act.lane, is_read].add(
            access, lambda: min(self.clocks[lane].get(act.lane, 0) for lane in others)
        )

    def _look_at_frees(self, access: Access, memory: Memory) -> None:
        """Note what is free from now on, or used although it is."""
        act, freed = access.act, memory.freed
        if act.kind == "free":
            for first, last in cached_spans(act.at):
                freed.put(first, last, access)
        elif not freed.is_empty:
            clock = self.clocks[act.lane]
            for span in freed.shared(cached_spans(act.at)):
                if act.kind == "write":
                    freed.clear(*span)
                    continue
                for first, last, free in freed.over(*span):
                    if clock.knows(free.act.lane, free.moment):
                        self._found("use after free", free, access, (first, last))

    def _found(self, kind: str, first: Access, second: Access, cells: Span) -> None:
        """Note cells of a pair."""
        key = kind, first.act.lane, first.moment, second.act.lane, second.moment
        self._pairs.setdefault(key, Pair(kind, first, second)).cells.append(cells)
