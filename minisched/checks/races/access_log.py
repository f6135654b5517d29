"""What one lane has done to one resource: the newest access to each cell, found quickly.

Whoever asks knows most of it already, so the newest accesses stand in a list and are compared one
by one, back to the last that is known. What is older is folded into one map of stretches, or is
dropped once every lane knows it that ever touches the resource.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...trace import Act
from ...trace.cells import Span
from .newest import Newest
from .spans import cached_spans, common, without
from .vector_clock import VectorClock

RECENT = 32  # accesses that are compared one by one


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


class AccessLog:
    """One lane's reads, or its writes and frees, of one resource."""

    def __init__(self) -> None:
        self.latest = 0  # the lane's moment at the newest of them
        self.recent: list[Access] = []
        self.older: Newest[Access] = Newest()
        self.latest_older = 0

    def add(self, access: Access, known_to_all: Callable[[], int]) -> None:
        """One more; ``known_to_all`` is the last moment of this lane that everybody knows."""
        self.latest = access.moment
        self.recent.append(access)
        if len(self.recent) > RECENT:
            known = known_to_all()
            for old in self.recent[: -RECENT // 2]:
                if old.moment > known:
                    self._fold(old)
            del self.recent[: -RECENT // 2]

    def unknown(self, cells: Sequence[Span], known: int) -> Iterator[tuple[Access, Span]]:
        """The newest access to each of some cells, as far as it came after moment ``known``."""
        for access in reversed(self.recent):
            if access.moment <= known:
                return
            if shared := list(common(cells, cached_spans(access.act.at))):
                yield from ((access, span) for span in shared)
                cells = without(cells, shared)
        if self.latest_older > known:
            for stretch in (some for span in cells for some in self.older.over(*span)):
                if stretch.what.moment > known:
                    yield stretch.what, (stretch.first, stretch.last)

    def _fold(self, access: Access) -> None:
        self.latest_older = access.moment
        for span in cached_spans(access.act.at):
            self.older.put(*span, access)
