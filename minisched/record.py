"""Record what an engine does, so that ``minisched check`` can judge it.

This file needs only the standard library: import it, or copy it into an engine::

    rec = Recorder()
    with rec.host("launch", step=7):  # a slice of this thread's lane
        op = rec.launch("forward", step=7)
    with rec.run(op):  # on the thread that is the device; for a GPU see record_torch.py
        rec.touch("write", "output 1", "0-1")
    with rec.host("wait", step=7):
        rec.wait(op)  # after the engine's own wait
    rec.token("request 5", 1234, step=7)
    rec.save("engine.json", "my engine")  # then: minisched check engine.json

A *slice* is work on a lane. An *act* is one thing that a lane did; races are found from acts.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any
from urllib.parse import quote

FORMAT, VERSION = "minisched trace", 1
Value = str | int | float | bool


# A frozen class would take five times as long to make.
@dataclass(slots=True)
class Slice:
    """Work on a lane: a phase of the host (``launch``, ``wait``), or an op (``forward``)."""

    id: int
    lane: str
    name: str
    start: int
    end: int
    step: int = 0  # 0: it belongs to no batch
    mode: str = ""  # the batch's forward mode: extend, decode, ...
    rids: tuple[str, ...] = ()
    attrs: dict[str, Value] = field(default_factory=dict)

    @property
    def duration(self) -> int:
        """Return the nanoseconds from start to end."""
        return self.end - self.start

    @property
    def label(self) -> str:
        """Return its name with its step: ``forward 5``."""
        return f"{self.name} {self.step}" if self.step else self.name


@dataclass(unsafe_hash=True, order=True, slots=True)
class Edge:
    """Slice ``dst`` had to wait for slice ``src``; the kinds stand in ``trace/events.py``."""

    src: int
    dst: int
    kind: str


@dataclass(unsafe_hash=True, slots=True)
class Counter:
    """A number that changed: ``waiting``, ``running``, ``kv used`` or ``future slots``."""

    name: str
    time: int
    value: int


@dataclass(slots=True)
class Mark:
    """A moment: a page that is freed, a retraction, an end; ``during`` is the host's slice."""

    name: str
    time: int
    attrs: dict[str, Any] = field(default_factory=dict)  # a tuple is a text in the file alone
    during: int = 0


@dataclass(unsafe_hash=True, slots=True)
class Act:
    """One thing that a lane did to ``op``; the kinds stand in ``trace/events.py``."""

    lane: str
    kind: str
    op: int
    resource: str = ""
    at: str = ""  # cells, as "3-7 9"
    rid: str = ""
    during: int = 0
    step: int = 0


# Of this thread or task: the recorder that it acts for, its lane, and its newest slice.
_HERE: ContextVar[tuple[object, str, int]] = ContextVar("_HERE", default=(None, "host", 0))
Touch = tuple[Any, ...]  # what an op does to cells: ("read", "kv", "3-7"), perhaps with a request
Cells = Iterable[int] | str  # of a resource: numbers, or as text, "3-7 9"
OFF = nullcontext(0)


class Recorder:
    """Keep one run's events; ``now`` is the clock, in nanoseconds from any beginning.

    Threads and tasks may record at the same time: appending to a list is atomic in Python.
    """

    def __init__(self, is_on: bool = True, now: Callable[[], int] = perf_counter_ns) -> None:
        self.is_on, self.now = is_on, now
        self.line: Callable[[], int] = lambda: 0  # of the loop's source (``loops/design.py``)
        self.slices: list[Slice] = []
        self.edges: list[Edge] = []
        self.counters: list[Counter] = []
        self.marks: list[Mark] = []
        self.acts: list[Act] = []
        self._ids = itertools.count(1)
        self._key = object()
        self._launched: dict[int, tuple[Slice, bool]] = {}  # no times yet; are its acts recorded?

    def host(
        self, name: str, step: int = 0, rids: Iterable[str] = (), mode: str = "", **attrs: Value
    ) -> AbstractContextManager[int]:
        """Record the body as a slice of this lane, and yield its id; such slices do not nest."""
        if not self.is_on:
            return OFF
        return Phase(self, Slice(self.new_id(), "", name, 0, 0, step, mode, tuple(rids), attrs))

    def launch(
        self,
        name: str,
        step: int = 0,
        rids: Iterable[str] = (),
        mode: str = "",
        lane: str = "forward",
        touches: Iterable[Touch] | None = None,
        uses: Iterable[int] = (),
    ) -> int:
        """Record that this lane launches an op on another one, and return the op.

        Without ``touches``, the thread that runs the op records them, inside ``run``. A stream of a
        GPU can't: give them here, perhaps empty, and the ops whose values the op ``uses``. A stream
        runs in order, so they are recorded now, and the times later (``ended``).
        """
        op = self.new_id()
        if self.is_on:
            item = Slice(op, lane, name, 0, 0, step, mode, tuple(rids))
            self._launched[op] = item, touches is not None
            here, during = self.here()
            self.act(Act(here, "launch", op, during=during))
            if touches is not None:
                self.act(Act(lane, "begin", op))
                self._touch(lane, op, (("read", "value", str(used)) for used in uses if used))
                self._touch(lane, op, touches)
                self.act(Act(lane, "end", op))
        return op

    def run(self, op: int, start: int | None = None) -> AbstractContextManager[Any]:
        """Record the body as the run of a launched op, on this thread, from now or ``start``."""
        if op not in self._launched:
            return OFF  # it was launched while the recorder was off
        return self._run(op, self.now() if start is None else start)

    @contextmanager
    def _run(self, op: int, start: int) -> Iterator[None]:
        before, (item, is_recorded) = self.here(), self._launched[op]
        lane = "" if is_recorded else item.lane
        self._launched[op] = item, True
        self.enter(lane, op)
        self.act(Act(lane, "begin", op))
        try:
            yield
        finally:
            self.act(Act(lane, "end", op))
            self.enter(*before)
            self.ended(op, start, self.now())

    def ended(self, op: int, start: int, end: int) -> None:
        """Record the times of a launched op, as measured elsewhere on the recorder's clock."""
        if op in self._launched:
            item, is_recorded = self._launched.pop(op)
            for kind in () if is_recorded else ("begin", "end"):
                self.act(Act(item.lane, kind, op))
            item.start, item.end = start, end
            self.slice(item)

    def wait(self, op: int, lane: str = "") -> None:
        """Record that a lane, by default this one, waits for the end of an op or for a signal."""
        if op and self.is_on:
            here, during = (lane, 0) if lane else self.here()
            self.act(Act(here, "wait", op, during=during))

    def say(self, signal: int) -> None:
        """Record that this lane sets a signal, a number from ``new_id``."""
        lane, during = self.here()
        self.act(Act(lane, "say", signal, during=during))

    def touch(self, kind: str, resource: str, cells: Cells, rid: str = "", step: int = 0) -> None:
        """Record that this lane itself does a ``read``, ``write``, ``free`` or ``release``.

        A ``release`` gives cells to a pool; ``step`` is the newest step committed so far.

        Raises:
            RuntimeError: this thread runs an op that was launched with ``touches``.
        """
        if self.is_on:
            lane, op = self.here()
            if op and not lane:
                raise RuntimeError(f"op {op} has touches from its launch; give all of them there")
            self._touch(lane, op, [(kind, resource, cells, rid)], step)

    def token(self, rid: str, token: int, step: int) -> None:
        """Record a token that a client receives."""
        self.mark("tokens", step=step, rids=(rid,), tokens=(token,))

    def mark(self, name: str, **attrs: Any) -> None:
        """Record a moment: ``finish``, ``page alloc``, .., or one with a name of your own."""
        if self.is_on:
            self.marks.append(Mark(name, self.now(), attrs, self.here()[1]))

    def counter(self, name: str, value: int) -> None:
        """Record a number as it is now."""
        if self.is_on:
            self.counters.append(Counter(name, self.now(), value))

    def edge(self, kind: str, src: int, dst: int) -> None:
        """Record that slice ``dst`` had to wait for slice ``src``."""
        if self.is_on:
            self.edges.append(Edge(src, dst, kind))

    def save(self, path: str, loop: str, device: str = "", model: str = "") -> None:
        """Write the events so far to a file, whole or not at all; OSError: it can't be written."""
        header = {"loop": loop, "device": device, "model": model, "clock": "wall"}
        with open(f"{path}.part", "w", encoding="utf-8", newline="\n") as file:
            file.write(to_json(header, self.in_order("wall")))
        os.replace(f"{path}.part", path)

    def in_order(self, clock: str) -> dict[str, list[Any]]:
        """Return the events in order, without edges to what never ran; a wall clock starts at 0."""
        slices = sorted(self.slices, key=lambda item: (item.start, item.end, item.id))
        counters = sorted(self.counters, key=lambda item: (item.time, item.name))
        marks = sorted(self.marks, key=lambda item: item.time)
        if zero := (slices[0].start if slices and clock == "wall" else 0):
            slices = [replace(s, start=s.start - zero, end=s.end - zero) for s in slices]
            counters = [replace(item, time=max(0, item.time - zero)) for item in counters]
            marks = [replace(item, time=max(0, item.time - zero)) for item in marks]
        ids = {item.id for item in slices}
        edges = sorted({*self.edges}, key=lambda item: (item.src, item.dst, item.kind))
        edges = [edge for edge in edges if edge.src in ids and edge.dst in ids]
        found: dict[str, list[Any]] = {"slices": slices, "edges": edges, "counters": counters}
        return {**found, "marks": marks, "program": list(self.acts)}

    def here(self) -> tuple[str, int]:
        """Return this thread's lane and its newest slice or call; a stream's thread has no lane."""
        recorder, lane, op = _HERE.get()
        return (lane, op) if recorder is self._key else ("host", 0)

    def new_id(self) -> int:
        """Return an id for a later slice, or for a signal."""
        return next(self._ids)

    def enter(self, lane: str, op: int = 0) -> None:
        """Name the lane of this thread or task (``host``, ``reader thread``), and its slice."""
        _HERE.set((self._key, lane, op))

    def slice(self, item: Slice) -> None:
        """Record a slice that has ended; one of the host gets its loop's line."""
        if self.is_on:
            if item.lane == "host" and (line := self.line()):
                item.attrs["line"] = line
            self.slices.append(item)

    def act(self, act: Act) -> None:
        """Record an act; the thread of a stream has no lane, and records none."""
        if act.lane and self.is_on:
            self.acts.append(act)

    def _touch(self, lane: str, op: int, touches: Iterable[Touch], step: int = 0) -> None:
        for kind, resource, cells, *rid in touches:
            if at := to_text(cells):
                self.act(Act(lane, kind, op, resource, at, rid[0] if rid else "", step=step))


class Phase(AbstractContextManager[int]):
    """A slice of the host, which lasts as long as its body."""

    def __init__(self, recorder: Recorder, item: Slice) -> None:
        self.recorder, self.item = recorder, item

    def __enter__(self) -> int:
        self.item.lane = self.recorder.here()[0]
        self.recorder.enter(self.item.lane, self.item.id)
        self.item.start = self.recorder.now()
        return self.item.id

    def __exit__(self, *error: object) -> None:
        self.item.end = self.recorder.now()
        self.recorder.slice(self.item)


# -- The file: JSON with one event a line; the README of ``traces`` describes it -------------------

MAY_LACK = {"step", "mode", "rids", "attrs", "resource", "at", "rid", "during"}  # fields


def to_json(header: dict[str, Any], events: dict[str, Any]) -> str:
    """Return a trace as text, ending in a newline; an empty program is left out."""
    parts = [f'"format": {json.dumps(FORMAT)}, "version": {VERSION}']
    parts.append(", ".join(f'"{name}": {json.dumps(value)}' for name, value in header.items()))
    for name, found in events.items():
        lines = ",".join("\n" + line_of(event) for event in found)
        if found or name != "program":
            parts.append(f'"{name}": [{lines}\n]')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def line_of(event: Any) -> str:
    """Return an event as one line, without the fields that are at their default."""
    values = ((name, getattr(event, name)) for name in event.__slots__)
    given = {name: value for name, value in values if value or name not in MAY_LACK}
    attrs = {name: to_value(value) for name, value in given.get("attrs", {}).items()}
    return json.dumps({**given, "attrs": attrs} if attrs else given)


def to_value(value: Any) -> Value:
    """Return a value of a mark as it is in a file: of numbers or names a text, ``4 5 9``."""
    return " ".join(quote(str(one)) for one in value) if isinstance(value, tuple) else value


def to_text(cells: Cells) -> str:
    """Return cells in order, each once, as spans: ``3-7 9``."""
    if isinstance(cells, str):
        return cells
    if isinstance(cells, range) and cells.step == 1 and cells:  # as a row of memory
        first, last = cells[0], cells[-1]
        return str(first) if first == last else f"{first}-{last}"
    spans: list[list[int]] = []
    for cell in sorted(set(map(int, cells))):
        if spans and cell == spans[-1][1] + 1:
            spans[-1][1] = cell
        else:
            spans.append([cell, cell])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
