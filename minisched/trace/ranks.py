"""One run, recorded by several processes, each on a clock of its own (``devices/dist.py``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from .events import Act, Counter, Mark, Slice, Trace
from .recorder import Recorder


class ClockOffset(NamedTuple):
    """Add ``offset`` to a rank's clock for rank 0's; true to ``error``; both in nanoseconds."""

    offset: int
    error: int

    def then(self, later: ClockOffset) -> ClockOffset:
        """One offset for the time between two measurements: clocks may drift apart."""
        low = min(self.offset - self.error, later.offset - later.error)
        high = max(self.offset + self.error, later.offset + later.error)
        return ClockOffset((low + high) // 2, (high - low + 1) // 2)


class RankEvents(NamedTuple):
    """What one rank has recorded, with the acts of its program."""

    slices: list[Slice]
    edges: set[tuple[int, int, str]]
    counters: list[Counter]
    marks: list[Mark]
    acts: list[Act]


class RankRecorder(Recorder):
    """A rank's recorder: no other rank's gives out the same ids, so that edges may lead to them."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self._ids = itertools.count(rank + 1, size)

    def events(self, name: Callable[[str], str]) -> RankEvents:
        """Everything so far; ``name`` says what lanes and resources are called on rank 0."""
        acts = [
            replace(act, lane=name(act.lane), resource=act.resource and name(act.resource))
            for act in self.program.acts
        ]
        slices = [replace(item, lane=name(item.lane)) for item in self._slices]
        return RankEvents(slices, self._edges, self._counters, self._marks, acts)

    def absorb(self, rank: int, events: RankEvents, shift: ClockOffset) -> None:
        """Take in what another rank has recorded, with its times on this rank's clock.

        A mark ``clock offset`` says what was added to them, and by how much that may be wrong.
        """
        offset = shift.offset
        self._slices += [
            replace(item, start=item.start + offset, end=item.end + offset)
            for item in events.slices
        ]
        self._edges |= events.edges
        self._counters += [replace(item, time=item.time + offset) for item in events.counters]
        self._marks += [replace(item, time=item.time + offset) for item in events.marks]
        self.program.acts += events.acts
        self.mark("clock offset", rank=rank, offset=offset, error=shift.error)


def clock_error(trace: Trace) -> int:
    """By how many ns a time of one process may be off from another's; 0: it was one process."""
    found = (mark.attrs["error"] for mark in trace.marks if mark.name == "clock offset")
    return max(map(int, found), default=0)
