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
from functools import lru_cache
from typing import NamedTuple

from ..trace import Act
from ..trace.program import Span, spans_of
from .newest import Newest
from .vector_clock import VectorClock

VALUE = "value"  # what an op gives: written by its end, read by the ops that take it


class Point(NamedTuple):
    """A moment of a lane, and what was known there."""

    lane: str
    moment: int
    clock: VectorClock


class Access(NamedTuple):
    """An act that touches memory, at a moment of its lane; ``decided`` is where it was launched."""

    act: Act
    moment: int
    decided: Point

    def is_decided_before(self, other: Access) -> bool | None:
        """Whether it was launched before another one, in any order of events; None: nobody says."""
        if other.decided.clock.knows(self.decided.lane, self.decided.moment):
            return True
        known = self.decided.clock.knows(other.decided.lane, other.decided.moment)
        return False if known else None


class Pair(NamedTuple):
    """Two accesses that are in each other's way, in the order in which they were taken."""

    kind: str  # "race" or "use after free"
    resource: str
    first: Access
    second: Access


@dataclass
class Memory:
    """What is known of one resource: who touched its cells last, by lane, and what is freed."""

    touched: dict[tuple[str, bool], Newest[Access]] = field(default_factory=dict)  # lane, is read
    latest: dict[tuple[str, bool], int] = field(default_factory=dict)  # the newest of all cells
    freed: Newest[Access] = field(default_factory=Newest)


class Detector:
    """``pairs`` holds the cells of every pair found; acts are given to ``take`` in any order."""

    def __init__(self) -> None:
        self.clocks: defaultdict[str, VectorClock] = defaultdict(VectorClock)
        self.launched: dict[int, Point] = {}
        self.ended: dict[int, VectorClock] = {}
        self.memory: defaultdict[str, Memory] = defaultdict(Memory)
        self.pairs: dict[Pair, list[Span]] = {}
        self._pairs: dict[tuple[str, str, int, str, int], Pair] = {}

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
        clock, memory, spans = self.clocks[act.lane], self.memory[act.resource], cells_of(act.at)
        decided = self.launched.get(act.op) or Point(act.lane, moment, clock.copy())
        access, is_read = Access(act, moment, decided), act.kind == "read"
        for (lane, was_read), newest in memory.touched.items():
            ahead = not clock.knows(lane, memory.latest[lane, was_read])
            if lane != act.lane and ahead and not (is_read and was_read):
                for stretch in (some for span in spans for some in newest.over(*span)):
                    if not clock.knows(lane, stretch.what.moment):
                        self._found("race", stretch.what, access, (stretch.first, stretch.last))
        self._look_at_frees(access, memory, spans)
        key = act.lane, is_read
        touched = memory.touched.setdefault(key, Newest())
        memory.latest[key] = moment
        for first, last in spans:
            touched.put(first, last, access)

    def _look_at_frees(self, access: Access, memory: Memory, spans: Iterable[Span]) -> None:
        clock = self.clocks[access.act.lane]
        for first, last in spans:
            if access.act.kind == "free":
                memory.freed.put(first, last, access)
            elif access.act.kind == "write":
                memory.freed.clear(first, last)
            else:
                for stretch in memory.freed.over(first, last):
                    free, cells = stretch.what, (stretch.first, stretch.last)
                    if clock.knows(free.act.lane, free.moment):
                        self._found("use after free", free, access, cells)

    def _found(self, kind: str, first: Access, second: Access, cells: Span) -> None:
        """Note cells of a pair."""
        key = kind, first.act.lane, first.moment, second.act.lane, second.moment
        pair = self._pairs.setdefault(key, Pair(kind, first.act.resource, first, second))
        self.pairs.setdefault(pair, []).append(cells)


@lru_cache(maxsize=1 << 16)
def cells_of(text: str) -> tuple[Span, ...]:
    """The spans in ``3-7 9``; the same text comes up again and again."""
    return tuple(spans_of(text))
