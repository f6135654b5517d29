"""One run, recorded by several processes, each on a clock of its own (``devices/dist.py``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from .events import Mark, Trace, Value
from .recorder import Events, Recorder


class ClockOffset(NamedTuple):
    """Add ``offset`` to a rank's clock for rank 0's; true to ``error``; both in nanoseconds."""

    offset: int
    error: int

    def then(self, later: ClockOffset) -> ClockOffset:
        """One offset for the time between two measurements: clocks may drift apart."""
        low = min(self.offset - self.error, later.offset - later.error)
        high = max(self.offset + self.error, later.offset + later.error)
        return ClockOffset((low + high) // 2, (high - low + 1) // 2)


def rank_recorder(rank: int, size: int) -> Recorder:
    """A rank's recorder: no other rank's gives out the same ids, so that edges may lead to them."""
    return Recorder(ids=itertools.count(rank + 1, size))


def renamed(events: Events, name: Callable[[str], str]) -> Events:
    """A rank's events; ``name`` says what its lanes and resources are called on rank 0."""
    slices = [replace(item, lane=name(item.lane)) for item in events.slices]
    acts = [
        replace(act, lane=name(act.lane), resource=act.resource and name(act.resource))
        for act in events.acts
    ]
    return events._replace(slices=slices, acts=acts)


def absorb(recorder: Recorder, rank: int, events: Events, shift: ClockOffset) -> None:
    """Take in what another rank has recorded, with its times on this recorder's clock.

    A mark ``clock offset`` says what was added to them, and by how much that may be wrong.
    """
    offset, own = shift.offset, recorder.events
    own.slices.extend(
        replace(item, start=item.start + offset, end=item.end + offset) for item in events.slices
    )
    own.edges.update(events.edges)
    own.counters.extend(replace(item, time=item.time + offset) for item in events.counters)
    own.marks.extend(replace(item, time=item.time + offset) for item in events.marks)
    own.acts.extend(events.acts)
    attrs: dict[str, Value] = {"rank": rank, "offset": offset, "error": shift.error}
    own.marks.append(Mark("clock offset", recorder.now(), attrs))


def clock_error(trace: Trace) -> int:
    """By how many ns a time of one process may be off from another's; 0: it was one process."""
    found = (mark.attrs["error"] for mark in trace.marks if mark.name == "clock offset")
    return max(map(int, found), default=0)
