"""Step under step: each has a lane for its host and one for its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..trace import Trace
from ..trace.events import is_host
from .layout import Arrow, Box, Lane, View, boxes_of, shown
from .runs import LEGEND, flag_of, links_of, span_of, waits_of
from .scene import LaneItem, LaneRow, Lanes, Part, Scene, about_run
from .units import ms


@dataclass(frozen=True)
class StepRow:
    """A step, from the moment it was scheduled until its result was processed.

    ``lanes``: the host's, its thread's, then the device's; a second of one where two things of a
    step overlap there. All are named after the step.
    """

    side: str  # whose step (``prefill``, ``decode``; empty where there is one scheduler)
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


def steps(trace: Trace, count: int = 4) -> Scene:
    """``count`` settled steps; above each stands how long it was on its way with the one before.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    view = steps_view(trace, rows)
    before: dict[str, StepRow] = {}
    drawn, both = list[LaneRow](), ""
    flags = {mark.time: mark for mark in waits_of(view)}
    for row in rows:
        earlier = before.get(row.side)
        common = together(earlier, row) if earlier else 0
        tint = view.clip(row.start, row.start + common)
        measure_ = LaneItem("span", *tint, f"{ms(common)} ms together", data={"overlap": row.step})
        item = next(box.slice for box in row.boxes if box.slice.name == "forward")
        who = f"{item.mode}, {len(item.rids)} row{'s' * (len(item.rids) != 1)}"
        for lane in row.lanes:
            spans = [LaneItem("both", *tint)] if common else []
            spans += [span_of(view, box, box.slice.name) for box in row.boxes
                      if box.lane == lane and box.slice.duration]  # fmt: skip
            if lane is row.lanes[0]:
                spans += [
                    flag_of(mark, view.clip(time, time)[0])
                    for time, mark in flags.items()
                    if mark.attrs.get("step") == row.step
                    or (
                        row is rows[0]
                        and all(other.step != mark.attrs.get("step") for other in rows)
                    )
                ]
            name = "thread" if " thread" in lane.name else lane.side
            is_first = lane is row.lanes[0]
            name += " also" * lane.name.endswith("also")
            above = measure_ if common and is_first else None
            drawn.append(LaneRow(name, spans, "", row.name, who, above))
        before[row.side] = row
        both = "the step above is on its way, too" if common else both
    return Scene(
        f"{trace.loop}: {rhythm(rows)}",
        about_run(trace, "0 is when the first of these steps is scheduled"),
        [
            Part("Step under step", "", [Lanes(drawn, view.duration, links=links_of(view))]),
        ],
        {**LEGEND, "both": both} if both else LEGEND,
    )


def rows_of(trace: Trace, count: int) -> list[StepRow]:
    """The steps that the other parts show, or ``count`` of them, whole; the first one first.

    Raises:
        NothingToShow: no step ran.
    """
    view, sides = shown(trace, count), sides_of(trace)
    found: dict[tuple[str, int], list[Box]] = {}
    for box in boxes_of(trace):
        if box.step:
            found.setdefault((sides[box.slice.lane], box.step), []).append(box)
    rows = [
        _row(side, step, boxes)
        for (side, step), boxes in found.items()
        if view.start <= _forward_start(boxes) < view.end
    ]
    return sorted(rows, key=lambda row: (row.start, row.step))


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
    numbers = [row.step for row in rows]
    return View(trace, start, end, min(numbers), max(numbers), lanes, tuple(boxes.values()),
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
    return min((box.slice.start for box in boxes if box.slice.name == "forward"), default=-1)


def _row(side: str, step: int, boxes: list[Box]) -> StepRow:
    """A step's boxes on as few lanes as hold them without overlap: host, thread, device."""
    groups: dict[str, list[list[Box]]] = {"host": [], "thread": [], "device": []}
    for box in boxes:
        name = box.slice.lane
        where = "thread" if name.endswith("thread") else "host" if is_host(name) else "device"
        room = (lane for lane in groups[where] if lane[-1].slice.end <= box.slice.start)
        if (found := next(room, None)) is None:
            groups[where].append(found := [])
        found.append(box)
    moved = []
    for where, packed in groups.items():
        for number, found in enumerate(packed):
            words = (side, f"step {step}", "thread" * (where == "thread"), "also" * bool(number))
            lane = Lane(f"{side}step{step}{where}{number or ''}", " ".join(filter(None, words)),
                        "device" if where == "device" else "host")  # fmt: skip
            moved += [Box(box.slice, lane, box.step) for box in found]
    return StepRow(side, step, tuple(dict.fromkeys(box.lane for box in moved)), tuple(moved))


def together(before: StepRow, row: StepRow) -> int:
    """Nanoseconds in which two steps were both on their way."""
    return max(0, min(before.end, row.end) - max(before.start, row.start))


def early(before: StepRow, row: StepRow) -> int:
    """Nanoseconds by which the host began a step before the device was done with the one before."""
    return before.device_span[1] - row.start


def rhythm(rows: Sequence[StepRow]) -> str:
    """One sentence on all of them, with the least and the most where they differ."""
    sides = {row.side: [other for other in rows if other.side == row.side] for row in rows}
    pairs = [pair for mine in sides.values() for pair in pairwise(mine)]
    done, host = "the device ends the one above", "the host"
    if len(sides) > 1:
        done, host = "its own device ends the step before", "a host"
    ahead = sorted(time for time in (early(*pair) for pair in pairs) if time > 0)
    if not pairs:
        return "one step"
    if not ahead:
        return f"{'each' if len(sides) > 1 else 'the'} host begins a step only when {done}"
    every = "a step" if len(ahead) == len(pairs) else f"{len(ahead)} of these {len(pairs)} steps"
    times = " to ".join(dict.fromkeys((ms(ahead[0]), ms(ahead[-1]))))
    return f"{host} begins {every} {times} ms before {done}"
