"""Collects what a run leaves while it goes on; threads may record at the same time.

A ``Recorder`` keeps when things ran and why: slices, edges, counters and marks. Its ``Program``
keeps what had to come before what, and who touched which memory.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

from .events import Act, Counter, Edge, Mark, Slice, Trace, Value


class Events(NamedTuple):
    """Everything recorded so far."""

    slices: list[Slice]
    edges: set[tuple[int, int, str]]  # src, dst, kind
    counters: list[Counter]
    marks: list[Mark]
    acts: list[Act]


class Recorder:
    """Gathers one run's events. The device sets ``now``; times are nanoseconds since the start.

    An id can be taken before its slice is known (``new_id``), so that an edge can point at an op
    that has been launched but has not run. Appending to a list is atomic in Python, so streams on
    threads need no lock. Without ``is_on`` nothing is kept, and texts for it need not be written.
    ``line`` returns the loop's current line of source (``loops/design.py``), or 0.
    """

    def __init__(self, is_on: bool = True) -> None:
        self.is_on = is_on
        self.side = ""
        self.now: Callable[[], int] = lambda: 0
        self.line: Callable[[], int] = lambda: 0
        self._ids = itertools.count(1)
        self.events = Events([], set(), [], [], [])
        self.program = Program(self.new_id, is_on, acts=self.events.acts)

    def of_side(self, side: str) -> Recorder:
        """Return a recorder of one of two schedulers: the same events, with a clock of its own.

        Lanes, counters and resources get the side's name in front (``prefill host``, ``decode
        kv``), and marks a ``side``.
        """
        part = copy(self)
        part.side, part.program = side, Program(self.new_id, self.is_on, side, self.events.acts)
        return part

    def new_id(self) -> int:
        """Return an id for a later slice."""
        return next(self._ids)

    def ran(
        self, slice_id: int, lane: str, name: str, start: int, end: int, /, *label: Any
    ) -> None:
        """Record that something ran; ``label`` is its step, mode and requests."""
        self.slice(Slice(slice_id, lane, name, start, end, *label))

    def slice(self, item: Slice) -> None:
        """Record a slice that has ended; one of the host gets its loop's line."""
        if self.is_on:
            if item.lane == "host" and (line := self.line()):
                item.attrs["line"] = line
            item.lane = named(self.side, item.lane)
            self.events.slices.append(item)

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Record that slice ``dst`` had to wait for slice ``src``."""
        if self.is_on:
            self.events.edges.add((src, dst, kind))

    def counter(self, name: str, value: int) -> None:
        """Record a number as it is now."""
        if self.is_on:
            self.events.counters.append(Counter(named(self.side, name), self.now(), value))

    def mark(self, name: str, **attrs: Value) -> None:
        """Record a moment."""
        if self.is_on:
            attrs = {"side": self.side, **attrs} if self.side else attrs
            self.events.marks.append(Mark(name, self.now(), attrs, self.program.op))

    def trace(
        self,
        loop: str,
        device: str,
        model: str,
        clock: str,
        dtype: str = "",
        apart: float | None = None,
    ) -> Trace:
        """Return the events so far, in order; edges to slices that never ran are left out.

        On a wall clock, time 0 is moved to the start of the first slice. Earlier counters and marks
        get time 0.
        """
        slices = sorted(self.events.slices, key=lambda item: (item.start, item.end, item.id))
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
            edges=tuple(Edge(*e) for e in sorted(self.events.edges) if e[0] in ids and e[1] in ids),
            counters=tuple(
                replace(item, time=max(0, item.time - zero))
                for item in sorted(self.events.counters, key=lambda item: (item.time, item.name))
            ),
            marks=tuple(
                replace(item, time=max(0, item.time - zero))
                for item in sorted(self.events.marks, key=lambda item: item.time)
            ),
            program=tuple(self.events.acts),
            dtype=dtype,
            apart=apart,
        )


class NullRecorder(Recorder):
    """Records nothing."""

    def __init__(self) -> None:
        super().__init__(is_on=False)


# -- What each lane did -------------------------------------------------------------------------


class Touch(NamedTuple):
    """An op's access to some cells of a resource, declared at its launch."""

    kind: str  # read, write or free
    resource: str
    cells: Iterable[int] | str  # or as text, as an ``Act`` has them
    rid: str = ""


class Program:
    """The acts of each lane, in its own order: launches, waits and accesses to memory.

    Slices have times. A program has the order that holds on every clock, and races are found from
    it (``checks/races.py``). A stream runs in order, so its acts are known at the launch, without a
    question to the device. A thread knows its lane; the acts of a stream name theirs.

    Without ``is_on`` nothing is kept, and touches need not be computed. One ``side`` of two puts
    its acts among those of the run (``acts``), under its own name.
    """

    def __init__(
        self,
        new_id: Callable[[], int],
        is_on: bool = True,
        side: str = "",
        acts: list[Act] | None = None,
    ) -> None:
        self.acts: list[Act] = [] if acts is None else acts
        self.new_id = new_id
        self.is_on = is_on
        self.side = side
        self._here = threading.local()

    @property
    def lane(self) -> str:
        """Return the lane of this thread; empty for a stream: the launches record its acts."""
        return getattr(self._here, "lane", "host")

    @property
    def op(self) -> int:
        """Return the id of this thread's current slice or call."""
        return getattr(self._here, "op", 0)

    def enter(self, lane: str, op: int = 0) -> None:
        """Set the lane that this thread acts for, and the slice that it is in."""
        self._here.lane, self._here.op = lane, op

    def launch(
        self, lane: str, op: int, args: Iterable[Any] = (), touches: Iterable[Touch] = ()
    ) -> None:
        """Record that this lane launches an op on a stream; the op reads the values in ``args``."""
        if not self.is_on:
            return
        self._act(self.lane, "launch", op, during=self.op)
        self._act(lane, "begin", op)
        for given in args:
            if source := getattr(given, "slice_id", 0):
                self._act(lane, "read", op, "value", str(source))
        self._touch(lane, op, touches)
        self._act(lane, "end", op)

    def call(self, op: int) -> None:
        """Record that this lane queues a call for a thread of the host, which records its acts."""
        self._act(self.lane, "launch", op, during=self.op)

    @contextmanager
    def inside(self, lane: str, op: int) -> Iterator[None]:
        """Record a call on a thread's lane, run by this thread."""
        with self.acting(lane, op):
            self._act(lane, "begin", op)
            try:
                yield
            finally:
                self._act(lane, "end", op)

    @contextmanager
    def acting(self, lane: str, op: int) -> Iterator[None]:
        """Act for another lane inside, in one of its slices."""
        before = self.lane, self.op
        self.enter(lane, op)
        try:
            yield
        finally:
            self.enter(*before)

    def wait(self, op: int, lane: str = "") -> None:
        """Record that a lane, by default this one, waits for the end of an op or for a signal."""
        if op:
            self._act(lane or self.lane, "wait", op, during=0 if lane else self.op)

    def say(self, signal: int) -> None:
        """Record that this lane sets a signal."""
        self._act(self.lane, "say", signal, during=self.op)

    def touch(self, kind: str, resource: str, cells: Iterable[int] | str, rid: str = "") -> None:
        """Record that this lane itself accesses cells."""
        if self.is_on:
            self._touch(self.lane, self.op, [Touch(kind, resource, cells, rid)])

    def release(self, resource: str, cells: Iterable[int], rid: str, step: int) -> None:
        """Record that this lane releases cells; ``step`` is the last step committed so far."""
        if self.is_on and (at := to_text(cells)):
            lane, resource = named(self.side, self.lane), named(self.side, resource)
            self.acts.append(Act(lane, "release", self.op, resource, at, rid, step=step))

    def _touch(self, lane: str, op: int, touches: Iterable[Touch]) -> None:
        side, lane = self.side, named(self.side, lane)
        for kind, resource, cells, rid in touches:
            if at := to_text(cells):
                self.acts.append(Act(lane, kind, op, named(side, resource), at, rid))

    def _act(
        self,
        lane: str,
        kind: str,
        op: int,
        resource: str = "",
        at: str = "",
        rid: str = "",
        during: int = 0,
    ) -> None:
        if lane and self.is_on:
            lane, resource = named(self.side, lane), named(self.side, resource)
            self.acts.append(Act(lane, kind, op, resource, at, rid, during))


def to_text(cells: Iterable[int] | str) -> str:
    """Return cells in order, each once, as spans: ``3-7 9``."""
    if isinstance(cells, str):
        return cells
    if isinstance(cells, list) and len(cells) == 1:
        return span_text(cells[0], cells[0])
    if isinstance(cells, range) and cells.step == 1:
        return span_text(cells[0], cells[-1]) if cells else ""
    spans: list[list[int]] = []
    for cell in sorted(set(map(int, cells))):
        if spans and cell == spans[-1][1] + 1:
            spans[-1][1] = cell
        else:
            spans.append([cell, cell])
    return " ".join(span_text(first, last) for first, last in spans)


def span_text(first: int, last: int) -> str:
    """Return one span: ``3-7``, or ``9``."""
    return str(first) if first == last else f"{first}-{last}"


# -- Two schedulers in one trace: each side records under its own name -----------------------------

SHARED = ("kv transfer", "value")  # lanes and resources that belong to no side


def named(side: str, name: str) -> str:
    """Return the whole run's name of a side's lane or resource; an empty name stays empty."""
    return f"{side} {name}" if side and name and name not in SHARED else name
