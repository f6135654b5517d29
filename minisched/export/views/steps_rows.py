"""A run's steps one under the other: each step has a lane for its host and one for its device.

It is a view (``layout.py``) whose lanes are steps, so every exporter draws it as it draws any.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...trace import Trace
from ...trace.events import is_host
from ..lane import Lane
from ..layout import Arrow, Box, View, boxes_of
from .shown_steps import shown

Key = tuple[str, int]  # whose step (``prefill``, ``decode``; empty where there is one scheduler)


@dataclass(frozen=True)
class StepRow:
    """A step, from the moment it was scheduled until its result was processed.

    ``lanes``: the host's, its thread's, then the device's; a second of one where two things of a
    step overlap there. All are named after the step.
    """

    side: str
    step: int
    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]  # on those lanes

    @property
    def name(self) -> str:
        """``step 5``, ``prefill step 5``."""
        return f"{self.side} step {self.step}".strip()

    @property
    def start(self) -> int:
        """When the host began to schedule it."""
        return min(box.slice.start for box in self.boxes)

    @property
    def end(self) -> int:
        """When its last part was over."""
        return max(box.slice.end for box in self.boxes)

    @property
    def device_span(self) -> tuple[int, int]:
        """When a device began with it, and when the last one had done with it."""
        device = [box.slice for box in self.boxes if box.lane.side == "device"]
        return min(item.start for item in device), max(item.end for item in device)


def rows_of(trace: Trace, count: int) -> list[StepRow]:
    """The steps that the other parts show, or ``count`` of them, whole; the first one first.

    Raises:
        NothingToShow: no step ran.
    """
    view, sides = shown(trace, count), sides_of(trace)
    steps: dict[Key, list[Box]] = {}
    for box in boxes_of(trace):
        if box.step:
            steps.setdefault((sides[box.slice.lane], box.step), []).append(box)
    begun = ((_forward_start(boxes), key, boxes) for key, boxes in steps.items())
    found = [_row(key, boxes) for at, key, boxes in begun if view.start <= at < view.end]
    return sorted(found, key=lambda row: (row.start, row.step))


def steps_view(trace: Trace, rows: list[StepRow]) -> View:
    """The rows as a view: everything that belongs to one of them, and the edges between that."""
    boxes = {box.slice.id: box for row in rows for box in row.boxes}
    arrows = (
        Arrow(boxes[edge.src], boxes[edge.dst], edge.kind)
        for edge in trace.edges
        if edge.src in boxes and edge.dst in boxes
    )
    start, end = min(row.start for row in rows), max(row.end for row in rows)
    lanes = tuple(lane for row in rows for lane in row.lanes)
    steps = [row.step for row in rows]
    return View(trace, start, end, min(steps), max(steps), lanes, tuple(boxes.values()),
                tuple(arrows), ())  # fmt: skip


def sides_of(trace: Trace) -> dict[str, str]:
    """Which scheduler a lane belongs to; the link between two belongs to the one that sends."""
    lanes = dict.fromkeys(item.lane for item in trace.slices)
    named = [lane.removesuffix(" host") for lane in lanes if lane.endswith(" host")]
    found = {lane: next((s for s in named if lane.startswith(f"{s} ")), "") for lane in lanes}
    slices = {item.id: item for item in trace.slices}
    for edge in trace.edges:
        if not found[slices[edge.dst].lane]:
            found[slices[edge.dst].lane] = found[slices[edge.src].lane]
    return found


def _forward_start(boxes: list[Box]) -> int:
    """When the first device began with a step; -1: none did."""
    starts = (box.slice.start for box in boxes if box.slice.name == "forward")
    return min(starts, default=-1)


def _row(key: Key, boxes: list[Box]) -> StepRow:
    groups: dict[str, list[Box]] = {"host": [], "thread": [], "device": []}
    for box in boxes:
        groups[_where(box.slice.lane)].append(box)
    moved = [box for where in groups for box in _on_lanes(key, where, groups[where])]
    return StepRow(*key, tuple(dict.fromkeys(box.lane for box in moved)), tuple(moved))


def _where(lane: str) -> str:
    return "thread" if lane.endswith("thread") else "host" if is_host(lane) else "device"


def _on_lanes(key: Key, where: str, boxes: list[Box]) -> Iterator[Box]:
    """Boxes on as few lanes as hold them without overlap, lane by lane."""
    packed: list[list[Box]] = []
    for box in boxes:
        room = (lane for lane in packed if lane[-1].slice.end <= box.slice.start)
        if (found := next(room, None)) is None:
            packed.append(found := [])
        found.append(box)
    for number, line in enumerate(packed):
        lane = _lane(key, where, number)
        yield from (Box(box.slice, lane, box.step) for box in line)


def _lane(key: Key, where: str, number: int) -> Lane:
    """A step's lane; ``number`` counts those that hold what the first has no room for."""
    side, step = key
    words = [side, f"step {step}", "thread" * (where == "thread"), "also" * bool(number)]
    name = " ".join(filter(None, words))
    return Lane(
        f"{side}step{step}{where}{number or ''}", name, "device" if where == "device" else "host"
    )
