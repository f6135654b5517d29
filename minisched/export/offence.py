"""A broken law as a picture: the few steps around it, what did it in red, by number.

It takes any ``checks/history.py:Offence``: a race, a wrong token, a leak. The museum's exhibits
stand on the same lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from statistics import median

from ..checks.history import Offence
from ..checks.overlap import forwards
from ..trace import Trace
from .layout import Box, View, boxes_of, make_view
from .runs import LEGEND as RUN_LEGEND
from .runs import lanes_of
from .scene import LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, about_run
from .scene_svg import to_svg
from .scene_text import COLUMNS
from .scene_text import to_text as scene_to_text
from .units import exact, ms

STEPS = 1.2  # shown before and after what did it
LEGEND = {
    **RUN_LEGEND,
    "outline": "what did it, by number",
    "ghost": "the other order, which nothing forbids",
    "arrow missing": "an edge that should be there, and is not",
}


def draw(trace: Trace, offence: Offence, around_ns: int | None = None) -> str:
    """``offence_scene`` as SVG."""
    return to_svg(offence_scene(trace, offence, around_ns))


def to_text(
    trace: Trace, offence: Offence, around_ns: int | None = None, columns: int = COLUMNS
) -> str:
    """``offence_scene`` for a terminal."""
    return scene_to_text(offence_scene(trace, offence, around_ns), columns)


def offence_scene(trace: Trace, offence: Offence, around_ns: int | None = None) -> Scene:
    """The stretch from the first slice that did it to the last, and ``around_ns`` on either side.

    By default about one step. Where no slice is left that did it (what never ran has none), it is
    the whole run. Where a device idles is not what this picture is about.

    Raises:
        ValueError: ``around_ns`` is negative.
    """
    if around_ns is not None and around_ns < 0:
        raise ValueError(f"around_ns is {around_ns}, but it must be at least 0 nanoseconds.")
    ran = [box.slice for box in culprits_of(boxes_of(trace), offence)]
    around = _around(trace) if around_ns is None else around_ns
    start = max(0, min((item.start for item in ran), default=0) - around)
    end = min(trace.end, max((item.end for item in ran), default=trace.end) + around)
    view = replace(make_view(trace, start, max(start + 1, end)), bubbles=())
    used = {box.lane for box in view.boxes}
    view = replace(view, lanes=tuple(lane for lane in view.lanes if lane in used) or view.lanes)
    note = f"{ms(view.start)} to {ms(view.end)} of {ms(trace.end)} ms"
    part = Part(trace.loop, note, [in_red(view, offence, view.duration)])
    return Scene(offence.sentence, about_run(trace), [part], LEGEND, [*told(view, offence)])


def _around(trace: Trace) -> int:
    """About one step: what lies between the starts of two forward passes."""
    starts = [item.start for item in forwards(trace)]
    gaps = [after - before for before, after in pairwise(starts)]
    return round(STEPS * median(gaps)) if gaps else trace.end


def culprits_of(boxes: tuple[Box, ...], offence: Offence) -> list[Box]:
    """What did it, in order of time."""
    wanted = {*offence.slices, *(offence.missing or ())}
    return [box for box in boxes if box.slice.id in wanted]


def in_red(view: View, offence: Offence, duration: int) -> Lanes:
    """A view's lanes in the run's own time, with a frame around what did it, and a missing edge."""
    view = replace(view, zero=0)
    missing = missing_of(view, offence)
    pair = {box.slice.id for box in missing}
    arrows = (one for one in view.arrows if {one.src.slice.id, one.dst.slice.id} != pair)
    lanes = lanes_of(replace(view, arrows=tuple(arrows)), duration)
    red: list[list[LaneItem]] = [[] for _ in view.lanes]
    for number, box in enumerate(culprits_of(view.boxes, offence), 1):
        span = view.clip(box.slice.start, box.slice.end)
        red[view.lanes.index(box.lane)].append(
            LaneItem("outline", *span, str(number), about=f"{number}: {box.label}",
                     data={"offence": box.slice.id})
        )  # fmt: skip
    links = list(lanes.links)
    if missing:
        first, second = missing
        rows = view.lanes.index(first.lane), view.lanes.index(second.lane)
        # a free has to wait by the end of what it stands in, all else by its beginning
        ready = second.slice.end if offence.waits else second.slice.start
        leaves, arrives = (view.clip(time, time)[0] for time in (first.slice.end, ready))
        data = {"missing": f"{first.slice.id} {second.slice.id}"}
        links.append(
            LaneLink("missing", (rows[0], leaves), (rows[1], arrives),
                     missing_words(missing, offence), data=data)
        )  # fmt: skip
        came_behind = second.slice.start >= first.slice.end
        begin = first.slice.start if came_behind else first.slice.end
        other = view.clip(begin, begin + second.slice.duration)
        red[rows[1]].append(LaneItem("ghost", *other, about=LEGEND["ghost"]))
    rows_in_red = [
        LaneRow(row.name, [*row.spans, *more], row.note)
        for row, more in zip(lanes.rows, red, strict=True)
    ]
    return replace(lanes, rows=rows_in_red, links=links)


def missing_of(view: View, offence: Offence) -> list[Box]:
    """The two with no edge between them; empty: there is no such pair, or not both are shown."""
    by_id = {box.slice.id: box for box in view.boxes}
    pair = [by_id[one] for one in dict.fromkeys(offence.missing or ()) if one in by_id]
    return pair if len(pair) == 2 else []


def missing_words(missing: list[Box], offence: Offence) -> str:
    """What the missing edge would say."""
    first, second = (box.label for box in missing)
    if offence.waits:
        return f"the {offence.waits} in {second} must wait for {first}"
    return f"{second} does not wait for {first}"


def told(view: View, offence: Offence) -> Iterator[str]:
    """A line for each slice that did it, by number, and one for a missing edge."""
    for number, box in enumerate(culprits_of(view.boxes, offence), 1):
        item = box.slice
        rids = f", for {' '.join(item.rids)}" if item.rids else ""
        times = f"{when(item.start)} to {when(item.end)} ms"
        yield f"{number}: {box.label} on {box.lane.title}, {times}{rids}"
    if missing := missing_of(view, offence):
        yield f"missing: {missing_words(missing, offence)}"


def when(time: int) -> str:
    """A moment in milliseconds; one that would be rounded to nothing in full."""
    return ms(time) if time >= 10_000 else exact(time)
