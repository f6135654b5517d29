"""What an engine's authors call its phases: the outermost annotations of a thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

WORK = "work"  # where nothing is annotated
COUNTED = re.compile(r"[\s#:_-]*\d+$")  # step 12, ProfilerStep#12: one phase, however often
OF_PROFILER = frozenset({"ProfilerStep"})  # around everything, so that it says nothing
TAKEN = frozenset({"wait", "receive"})  # of our own traces: blocked, or asleep until somebody comes


class Range(NamedTuple):
    """Anything else that a thread said it was doing: an operator, an annotation, a function.

    ``is_annotation`` where the engine's authors named it: ``record_function``, an NVTX range.
    """

    thread: str
    name: str
    start: int
    end: int
    is_annotation: bool = False


class Phase(NamedTuple):
    """An outermost annotation, its number left off; times in nanoseconds."""

    name: str
    start: int
    end: int


class Phases:
    """Which phase a thread was in; it has to be asked in order of time."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self.phases = list(outermost(ranges))
        self.passed = 0

    def cut(self, start: int, end: int) -> Iterator[Phase]:
        """The time from ``start`` to ``end``, cut where a phase begins or ends."""
        while self.passed < len(self.phases) and self.phases[self.passed].end <= start:
            self.passed += 1
        at = self.passed
        while at < len(self.phases) and self.phases[at].start < end:
            name, since, until = self.phases[at]
            if start < since:
                yield Phase(WORK, start, since)
            yield Phase(name, max(start, since), min(until, end))
            start = min(until, end)
            at += 1
        if start < end:
            yield Phase(WORK, start, end)


def outermost(ranges: Iterable[Range]) -> Iterator[Phase]:
    """The annotations that are in no other one, in order of time; ``ranges`` by their start."""
    free: int | None = None
    for item in ranges:
        name = COUNTED.sub("", item.name)
        if not item.is_annotation or not name or name in OF_PROFILER:
            continue
        if free is None or item.start >= free:
            yield Phase(f"{name} (annotated)" if name in TAKEN else name, item.start, item.end)
            free = item.end
