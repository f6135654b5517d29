"""A broken law as a picture: the few steps around it, what did it in red, by number.

It takes any ``checks/history.py:Offence``: a race, a wrong token, a leak. The museum's exhibits
stand on the same lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from ..checks.history import Offence
from ..checks.overlap import step_intervals
from ..trace import Trace
from .layout import Box, View, boxes_of, make_view
from .runs import LEGEND as RUN_LEGEND
from .runs import lanes_of
from .scene import LaneItem, LaneLink, Lanes, Part, Scene, about_run
from .units import exact, ms

STEPS = 1.2  # shown before and after what did it
LEGEND = {
    **RUN_LEGEND,
    "outline": "what did it, by number",
    "ghost": "the other order, which nothing forbids",
    "arrow missing": "an edge that should be there, and is not",
}


def offence_scene(trace: Trace, offence: Offence) -> Scene:
    """The stretch from the first slice that did it to the last, and about a step on either side.

    Where no slice is left that did it (what never ran has none), it is the whole run. Where a
    device idles is not what this picture is about.
    """
    ran = [box.slice for box in culprits_of(boxes_of(trace), offence)]
    around = round(STEPS * median(step_intervals(trace) or [trace.end]))
    start = max(0, min((item.start for item in ran), default=0) - around)
    end = min(trace.end, max((item.end for item in ran), default=trace.end) + around)
    view = replace(make_view(trace, start, max(start + 1, end)), bubbles=())
    used = {box.lane for box in view.boxes}
    view = replace(view, lanes=tuple(lane for lane in view.lanes if lane in used) or view.lanes)
    note = f"{ms(view.start)} to {ms(view.end)} of {ms(trace.end)} ms"
    part = Part(trace.loop, note, [in_red(view, offence, view.duration)])
    return Scene(offence.sentence, about_run(trace), [part], LEGEND, [*told(view, offence)])


def culprits_of(boxes: tuple[Box, ...], offence: Offence) -> list[Box]:
    """What did it, in order of time."""
    wanted = {*offence.slices, *(offence.missing or ())}
    return [box for box in boxes if box.slice.id in wanted]


def in_red(view: View, offence: Offence, duration: int) -> Lanes:
    """A view's lanes in the run's own time, with a frame around what did it, and a missing edge."""
    view = replace(view, zero=0)
    lanes, missing = lanes_of(view, duration), missing_of(view, offence)
    pair = {box.slice.id for box in missing}
    links = [link for link in lanes.links if {link.data["src"], link.data["dst"]} != pair]
    red: list[list[LaneItem]] = [[] for _ in view.lanes]
    for number, box in enumerate(culprits_of(view.boxes, offence), 1):
        span = view.clip(box.slice.start, box.slice.end)
        item = LaneItem("outline", *span, str(number), about=f"{number}: {box.label}",
                        data={"offence": box.slice.id})  # fmt: skip
        red[view.lanes.index(box.lane)].append(item)
    if missing:
        first, second = missing
        rows = view.lanes.index(first.lane), view.lanes.index(second.lane)
        # a free has to wait by the end of what it stands in, all else by its beginning
        ready = second.slice.end if offence.waits else second.slice.start
        leaves, arrives = (view.clip(time, time)[0] for time in (first.slice.end, ready))
        data = {"missing": f"{first.slice.id} {second.slice.id}"}
        words = missing_words(missing, offence)
        links.append(LaneLink("missing", (rows[0], leaves), (rows[1], arrives), words, data=data))
        came_behind = second.slice.start >= first.slice.end
        begin = first.slice.start if came_behind else first.slice.end
        other = view.clip(begin, begin + second.slice.duration)
        red[rows[1]].append(LaneItem("ghost", *other, about=LEGEND["ghost"]))
    rows_in_red = [replace(row, spans=[*row.spans, *more])
                   for row, more in zip(lanes.rows, red, strict=True)]  # fmt: skip
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
        rids = f", for {' '.join(box.slice.rids)}" if box.slice.rids else ""
        # a time that would be rounded to nothing is written in full
        start, end = (ms(time) if time >= 10_000 else exact(time)
                      for time in (box.slice.start, box.slice.end))  # fmt: skip
        yield f"{number}: {box.label} on {box.lane.title}, {start} to {end} ms{rids}"
    if missing := missing_of(view, offence):
        yield f"missing: {missing_words(missing, offence)}"
