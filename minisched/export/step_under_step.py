"""Step under step: a lane for the host and one for the device, for each step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..checks.history import many, side_of
from ..trace import Slice, Trace
from ..trace.events import is_host
from ..trace.sides import sides
from .layout import View, arrows_between, make_view, shown, slices_of
from .runs import LEGEND, flag_of, links_of, span_of, waits_of
from .scene import LaneItem, LaneRow, Lanes, Part, Scene, about_run
from .units import ms


@dataclass(frozen=True)
class StepRow:
    """A step, from the start of its schedule until its result was processed.

    Its lanes are the host's, its thread's, then the device's. A second lane of one (``device
    also``) holds the slices of a step that overlap there.
    """

    side: str  # the step's side (``prefill``, ``decode``; empty where there is one scheduler)
    step: int
    lanes: tuple[tuple[str, tuple[Slice, ...]], ...]

    @property
    def slices(self) -> list[Slice]:
        """Return all slices of the step."""
        return [item for _, slices in self.lanes for item in slices]

    @property
    def start(self) -> int:
        """Return the time when the host began to schedule it."""
        return min(item.start for item in self.slices)

    @property
    def end(self) -> int:
        """Return the time when its last slice ended."""
        return max(item.end for item in self.slices)

    @property
    def device_end(self) -> int:
        """Return the time when the last device finished it."""
        return max(item.end for item in self.slices if not is_host(item.lane))


def steps(trace: Trace, count: int = 4) -> Scene:
    """Draw ``count`` settled steps; a measure above each shows its overlap with the previous one.

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
    drawn, at, both = list[LaneRow](), dict[int, int](), dict[str, str]()
    for row in rows:
        earlier = before.get(row.side)
        before[row.side] = row
        common = max(0, min(earlier.end, row.end) - row.start) if earlier else 0
        tint, measure = view.clip(row.start, row.start + common), None
        if common:
            both = {"both": "the step above is on its way, too"}
            measure = LaneItem("span", *tint, f"{ms(common)} ms together",
                               data={"overlap": row.step})  # fmt: skip
        item = next(item for item in row.slices if item.name == "forward")
        name, who = (
            f"{row.side} step {row.step}".strip(),
            f"{item.mode}, {many(len(item.rids), 'row')}",
        )
        for number, (lane, slices) in enumerate(row.lanes):
            at |= {item.id: len(drawn) for item in slices}
            spans = [LaneItem("both", *tint)] if common else []
            spans += [span_of(view, item, item.name) for item in slices if item.duration]
            spans += flags[row.step].values() if not number else ()
            drawn.append(LaneRow(lane, spans, "", name, who, None if number else measure))
    lanes = Lanes(drawn, view.duration, links=links_of(view, at))
    about = about_run(trace, "0 is when the first of these steps is scheduled")
    title = f"{trace.loop}: {rhythm(rows)}"
    return Scene(title, about, [Part("Step under step", "", [lanes])], LEGEND | both)


def rows_of(trace: Trace, count: int) -> list[StepRow]:
    """Return the steps that the other parts show, or ``count`` of them, whole and in order.

    Raises:
        NothingToShow: no step ran.
    """
    view, link = shown(trace, count), sides(trace)[0]  # between two sides: the sender's
    found: dict[tuple[str, int], list[Slice]] = defaultdict(list)
    for item in slices_of(trace):
        if item.step:
            found[side_of(item.lane)[0] or link, item.step].append(item)
    rows = [
        _row(side, step, slices)
        for (side, step), slices in found.items()
        if (passes := [item.start for item in slices if item.name == "forward"])
        and view.start <= min(passes) < view.end
    ]
    return sorted(rows, key=lambda row: (row.start, row.step))


def _row(side: str, step: int, slices: Sequence[Slice]) -> StepRow:
    """Return a step's slices on the fewest lanes without overlap: host, thread, device."""
    groups: dict[str, list[list[Slice]]] = {"host": [], "thread": [], "device": []}
    for item in slices:
        where = "thread" if item.lane.endswith("thread") else "host"
        packed = groups[where if is_host(item.lane) else "device"]
        lane = next((lane for lane in packed if lane[-1].end <= item.start), None)
        if lane is None:
            packed.append(lane := [])
        lane.append(item)
    lanes = [
        (where + " also" * bool(number), tuple(lane))
        for where, packed in groups.items()
        for number, lane in enumerate(packed)
    ]
    return StepRow(side, step, tuple(lanes))


def steps_view(trace: Trace, rows: list[StepRow]) -> View:
    """Return the rows as a view: all of their slices, and the edges between those."""
    slices = tuple(item for row in rows for item in row.slices)
    view = make_view(trace, min(row.start for row in rows), max(row.end for row in rows))
    return replace(view, slices=slices, arrows=arrows_between(trace, slices), bubbles=())


def rhythm(rows: Sequence[StepRow]) -> str:
    """Write how long before the end of a step the host begins the next: least and most."""
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
