"""A recorder that adds up and keeps nothing, however long the run; another one may hear it too."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..trace import Mark, NullRecorder, Recorder, Slice
from ..trace.events import Value


class Tally(NullRecorder):
    """How long each lane was busy, and when the last slice ended, in nanoseconds.

    Slices of one lane never overlap, so their durations add up. While the host waits it is not
    busy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy_ns: Counter[str] = Counter()  # by lane
        self.end = 0

    def ran(
        self, slice_id: int, lane: str, name: str, start: int, end: int, /, *label: Any
    ) -> None:
        """Add something that ran; no ``Slice`` is made, since nobody keeps it."""
        self.add(lane, name, start, end)

    def slice(self, item: Slice) -> None:
        """Add a slice that has ended."""
        self.add(item.lane, item.name, item.start, item.end)

    def add(self, lane: str, name: str, start: int, end: int) -> None:
        """Add the time that something took of its lane."""
        if name != "wait":
            self.busy_ns[lane] += end - start
        if end > self.end:
            self.end = end


class RecordedTally(Tally):
    """Adds up, and hands everything on to a recorder that keeps it, or writes it down."""

    is_on = True

    def __init__(self, into: Recorder) -> None:
        super().__init__()
        self.into = into

    def new_id(self) -> int:
        """An id of the recorder's."""
        return self.into.new_id()

    ran = Recorder.ran  # as a slice again: it is kept

    def slice(self, item: Slice) -> None:
        """Add a slice that has ended, and hand it on."""
        super().slice(item)
        self.into.line = self.line
        self.into.slice(item)

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Hand an edge on."""
        self.into.edge(kind, src, dst)

    def counter(self, name: str, value: int) -> None:
        """Hand a number on."""
        self.into.now = self.now
        self.into.counter(name, value)

    def mark(self, name: str, **attrs: Value) -> None:
        """Hand a moment on."""
        self.keep(Mark(name, self.now(), attrs, self.program.op))

    def keep(self, mark: Mark) -> None:
        """Hand a moment on that is known already."""
        self.into.keep(mark)
