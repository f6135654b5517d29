"""Step under step: each has a lane for its host and one for its device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..checks.history import side_of
from ..trace import Trace
from ..trace.events import is_host
from ..trace.sides import sides
from .layout import Arrow, Box, Lane, View, boxes_of, shown
from .runs import LEGEND, flag_of, links_of, span_of, waits_of
from .scene import LaneItem, LaneRow, Lanes, Part, Scene, about_run
from .units import ms
from .views.marks import many


@dataclass(frozen=True)
class StepRow:
    """A step, from the moment it was scheduled until its result was processed.

    Its lanes: the host's, its thread's, then the device's; a second of one where two things of a
    step overlap there.
    """

    side: str  # whose step (``prefill``, ``decode``; empty where there is one scheduler)
    step: int
    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]  # on those lanes

    @property
    def start(self) -> int:
        """When the host began to schedule it."""
        return min(box.slice.start for box in self.boxes)

    @property
    def end(self) -> int:
        """When its last part was over."""
        return max(box.slice.end for box in self.boxes)

    @property
    def device_end(self) -> int:
        """When the last device had done with it."""
        return max(box.slice.end for box in self.boxes if box.lane.side == "device")


def steps(trace: Trace, count: int = 4) -> Scene:
    """``count`` settled steps; above each stands how long it was on its way with the one before.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    view, known = steps_view(trace, rows), {row.step for row in rows}
    flags: dict[int, dict[int, LaneItem]] = defaultdict(dict)  # of a step, by time
    for mark in waits_of(view):
        step, time = int(mark.attrs["step"]), view.clip(mark.time, mark.time)[0]
        flags[step if step in known else rows[0].step][time] = flag_of(mark, time)
    before: dict[str, StepRow] = {}
    drawn, both = list[LaneRow](), dict[str, str]()
    for row in rows:
        earlier = before.get(row.side)
        before[row.side] = row
        common = max(0, min(earlier.end, row.end) - row.start) if earlier else 0
        tint, measure = view.clip(row.start, row.start + common), None
        if common:
            both = {"both": "the step above is on its way, too"}
            measure = LaneItem("span", *tint, f"{ms(common)} ms together",
                               data={"overlap": row.step})  # fmt: skip
        item = next(box.slice for box in row.boxes if box.slice.name == "forward")
        name, who = (
            f"{row.side} step {row.step}".strip(),
            f"{item.mode}, {many(len(item.rids), 'row')}",
        )
        for at, lane in enumerate(row.lanes):
            spans = [LaneItem("both", *tint)] if common else []
            spans += [span_of(view, box, box.slice.name) for box in row.boxes
                      if box.lane == lane and box.slice.duration]  # fmt: skip
            spans += flags[row.step].values() if not at else ()
            drawn.append(LaneRow(lane.name, spans, "", name, who, None if at else measure))
    lanes = Lanes(drawn, view.duration, links=links_of(view))
    about = about_run(trace, "0 is when the first of these steps is scheduled")
    title = f"{trace.loop}: {rhythm(rows)}"
    return Scene(title, about, [Part("Step under step", "", [lanes])], LEGEND | both)


def rows_of(trace: Trace, count: int) -> list[StepRow]:
    """The steps that the other parts show, or ``count`` of them, whole; the first one first.

    Raises:
        NothingToShow: no step ran.
    """
    view, link = shown(trace, count), sides(trace)[0]  # between two sides: that of who sends
    found: dict[tuple[str, int], list[Box]] = defaultdict(list)
    for box in boxes_of(trace):
        if box.step:
            found[side_of(box.slice.lane)[0] or link, box.step].append(box)
    rows = [
        _row(side, step, boxes)
        for (side, step), boxes in found.items()
        if (passes := [box.slice.start for box in boxes if box.slice.name == "forward"])
        and view.start <= min(passes) < view.end
    ]
    return sorted(rows, key=lambda row: (row.start, row.step))


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
            lane = Lane(f"{side}step{step}{where}{number}", where + " also" * bool(number),
                        "device" if where == "device" else "host")  # fmt: skip
            moved += [Box(box.slice, lane, box.step) for box in found]
    return StepRow(side, step, tuple(dict.fromkeys(box.lane for box in moved)), tuple(moved))


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


def rhythm(rows: Sequence[StepRow]) -> str:
    """By how much the host begins a step before the device is done with the one before: the least
    and the most.
    """
    pairs = [pair for side in dict.fromkeys(row.side for row in rows)
             for pair in pairwise([row for row in rows if row.side == side])]  # fmt: skip
    if not pairs:
        return "one step"
    ahead = sorted(time for a, b in pairs if (time := a.device_end - b.start) > 0)
    host, done = "the host", "the device ends the one above"
    if any(row.side for row in rows):
        host, done = "a host", "its own device ends the step before"
    if not ahead:
        return f"{host} begins a step only when {done}"
    every = "a step" if len(ahead) == len(pairs) else f"{len(ahead)} of these {len(pairs)} steps"
    times = " to ".join(dict.fromkeys((ms(ahead[0]), ms(ahead[-1]))))
    return f"{host} begins {every} {times} ms before {done}"
