"""A recorder that adds up and keeps nothing, however long the run."""

from __future__ import annotations

from collections import Counter

from ..trace import NullRecorder, Slice


class Tally(NullRecorder):
    """How long each lane was busy, and when the last slice ended, in nanoseconds.

    Slices of one lane never overlap, so their durations add up. While the host waits it is not
    busy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy_ns: Counter[str] = Counter()  # by lane
        self.end = 0

    def slice(self, item: Slice) -> None:
        """Add a slice that has ended."""
        if item.name != "wait":
            self.busy_ns[item.lane] += item.end - item.start
        if item.end > self.end:
            self.end = item.end
