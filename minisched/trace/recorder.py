"""Collects events while a run goes on; threads may record at the same time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .events import Counter, Edge, Mark, Slice, Trace, Value
from .program import NullProgram, Program


class Recorder:
    """Gathers one run's events. The device sets ``now``; times are nanoseconds since the start.

    An id can be taken before its slice is known (``new_id``), so that an edge may point at an op
    that has been launched but has not run. Appending to a list is atomic in Python, so streams on
    threads need no lock. ``is_on`` says whether it is worth writing texts for it. ``line`` says at
    which line of its source the loop is, counted from 0 at its ``def``
    (``loops/design.py``); 0: nobody knows.
    """

    is_on = True

    def __init__(self) -> None:
        self.now: Callable[[], int] = lambda: 0
        self.line: Callable[[], int] = lambda: 0
        self._ids = itertools.count(1)
        self._slices: list[Slice] = []
        self._edges: set[tuple[int, int, str]] = set()  # src, dst, kind
        self._counters: list[Counter] = []
        self._marks: list[Mark] = []
        self.program = Program(self.new_id)

    def new_id(self) -> int:
        """An id for a slice to come."""
        return next(self._ids)

    def ran(
        self, slice_id: int, lane: str, name: str, start: int, end: int, /, *label: Any
    ) -> None:
        """Record that something ran; ``label`` is its step, mode and requests, as ``Slice`` has it.

        Only who keeps it makes a ``Slice`` of it.
        """
        self.slice(Slice(slice_id, lane, name, start, end, *label))

    def slice(self, item: Slice) -> None:
        """Record a slice that has ended; one of the host says where its loop is."""
        if item.lane == "host" and (line := self.line()):
            item.attrs["line"] = line
        self._slices.append(item)

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Record that slice ``dst`` had to wait for slice ``src``."""
        self._edges.add((src, dst, kind))

    def counter(self, name: str, value: int) -> None:
        """Record a number as it is now."""
        self._counters.append(Counter(name, self.now(), value))

    def mark(self, name: str, **attrs: Value) -> None:
        """Record a moment."""
        self.keep(Mark(name, self.now(), attrs, self.program.op))

    def keep(self, mark: Mark) -> None:
        """Record a moment that is known already."""
        self._marks.append(mark)

    def trace(self, loop: str, device: str, model: str, clock: str, dtype: str = "") -> Trace:
        """Everything recorded so far, ordered. Edges to slices that never ran are left out.

        On a wall clock, time 0 is moved to where the first slice starts; what was counted or marked
        before that is at 0.
        """
        slices = sorted(self._slices, key=lambda item: (item.start, item.end, item.id))
        zero = slices[0].start if slices and clock == "wall" else 0
        if zero:
            slices = [replace(s, start=s.start - zero, end=s.end - zero) for s in slices]
        ids = {item.id for item in slices}
        return Trace(
            loop,
            device,
            model,
            clock,
            slices=tuple(slices),
            edges=tuple(Edge(*e) for e in sorted(self._edges) if e[0] in ids and e[1] in ids),
            counters=tuple(
                replace(item, time=max(0, item.time - zero))
                for item in sorted(self._counters, key=lambda item: (item.time, item.name))
            ),
            marks=tuple(
                replace(item, time=max(0, item.time - zero))
                for item in sorted(self._marks, key=lambda item: item.time)
            ),
            program=tuple(self.program.acts),
            dtype=dtype,
        )


class NullRecorder(Recorder):
    """Records nothing."""

    is_on = False

    def __init__(self) -> None:
        super().__init__()
        self.program = NullProgram()

    def slice(self, item: Slice) -> None:
        """Nothing."""

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Nothing."""

    def counter(self, name: str, value: int) -> None:
        """Nothing."""

    def mark(self, name: str, **attrs: Value) -> None:
        """Nothing."""

    def keep(self, mark: Mark) -> None:
        """Nothing."""


# -- Two schedulers in one trace: each side records under its own name -----------------------------

SHARED = ("kv transfer", "value")  # lanes and resources that belong to no side


def named(side: str, name: str) -> str:
    """A lane or a resource of one side, as the whole run calls it; nothing stays nothing."""
    return name if name in SHARED or not name else f"{side} {name}"


class SideProgram(Program):
    """What one side's lanes do goes into the program of the whole run, under the side's names."""

    def __init__(self, whole: Program, side: str) -> None:
        super().__init__(whole.new_id)
        self.side = side
        self.acts = whole.acts

    def named(self, name: str) -> str:
        """With the side's name in front."""
        return named(self.side, name)


class SideRecorder(Recorder):
    """What one side records goes into the recorder of the whole run, at this side's time.

    Lanes and counters get the side's name in front (``prefill host``), marks a ``side``; what is
    touched (``decode kv``) too.
    """

    def __init__(self, whole: Recorder, side: str) -> None:
        super().__init__()
        self.whole = whole
        self.side = side
        self.is_on = whole.is_on
        kept = whole.program
        self.program = SideProgram(kept, side) if kept.is_on else NullProgram()

    def new_id(self) -> int:
        """An id that is the whole run's only one."""
        return self.whole.new_id()

    def slice(self, item: Slice) -> None:
        """Record a slice on this side's lane."""
        if item.lane == "host" and (line := self.line()):
            item.attrs["line"] = line
        self.whole.slice(replace(item, lane=named(self.side, item.lane)))

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Record an edge; it may lead to the other side."""
        self.whole.edge(kind, src, dst)

    def counter(self, name: str, value: int) -> None:
        """Record this side's number."""
        self.whole.now = self.now
        self.whole.counter(f"{self.side} {name}", value)

    def mark(self, name: str, **attrs: Value) -> None:
        """Record a moment of this side."""
        attrs = {"side": self.side, **attrs}
        self.whole.keep(Mark(name, self.now(), attrs, self.program.op))

    def trace(self, loop: str, device: str, model: str, clock: str, dtype: str = "") -> Trace:
        """The whole run's."""
        return self.whole.trace(loop, device, model, clock, dtype)
