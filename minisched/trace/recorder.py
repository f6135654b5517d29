"""Recorders of this package's engine: one that is off, and one for each of two schedulers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, NamedTuple

from ..record import Act, Cells, Recorder, Slice

SHARED = ("kv transfer", "value")  # lanes and resources that belong to no side


class Touch(NamedTuple):
    """An op's access to some cells of a resource, declared at its launch."""

    kind: str  # read, write or free
    resource: str
    cells: Cells
    rid: str = ""


class NullRecorder(Recorder):
    """Records nothing."""

    def __init__(self) -> None:
        super().__init__(is_on=False)


class SideRecorder(Recorder):
    """Records one of two schedulers among the events of ``both``.

    Lanes, counters and resources get the side's name in front (``prefill host``, ``decode kv``),
    and a mark gets a ``side``. Each side has its own clock and its own newest slice. Both run on
    one thread.
    """

    def __init__(self, both: Recorder, side: str) -> None:
        vars(self).update(vars(copy(both)))
        self.side, self.place = side, ("host", 0)

    def here(self) -> tuple[str, int]:
        """Return this side's lane and its newest slice or call."""
        return self.place

    def enter(self, lane: str, op: int = 0) -> None:
        """Set the lane that acts for this side, and its slice."""
        self.place = lane, op

    def mark(self, name: str, **attrs: Any) -> None:
        """Record a moment of this side."""
        super().mark(name, side=self.side, **attrs)

    def counter(self, name: str, value: int) -> None:
        """Record a number of this side."""
        super().counter(named(self.side, name), value)

    def slice(self, item: Slice) -> None:
        """Record a slice of this side."""
        super().slice(item)
        item.lane = named(self.side, item.lane)

    def act(self, act: Act) -> None:
        """Record an act of this side."""
        act.lane, act.resource = named(self.side, act.lane), named(self.side, act.resource)
        super().act(act)

    @contextmanager
    def acting(self, lane: str, op: int) -> Iterator[None]:
        """Let another lane act for this side inside, in one of its slices."""
        before, self.place = self.place, (lane, op)
        try:
            yield
        finally:
            self.place = before


def named(side: str, name: str) -> str:
    """Return the whole run's name of a side's lane or resource; an empty name stays empty."""
    return f"{side} {name}" if side and name and name not in SHARED else name
