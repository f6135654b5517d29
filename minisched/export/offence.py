"""A violated law as a picture: the few steps around it, with the culprits numbered in red.

It draws any ``checks/history.py:Offence``: a race, a wrong token, a leak. The museum's exhibits use
the same lanes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import median

from ..checks.history import Offence
from ..checks.overlap import step_intervals
from ..trace import Slice, Trace
from ..trace.events import is_forward, is_host
from .contested import LEGEND as CELL_LEGEND
from .contested import cell_row
from .layout import View, lane_title, make_view, slices_of
from .runs import LEGEND as RUN_LEGEND
from .runs import lanes_of
from .scene import LaneItem, LaneLink, Lanes, Part, Scene, about_run
from .units import exact, ms

STEPS = 1.2  # steps shown before and after the culprits
LEGEND = {
    **RUN_LEGEND,
    **CELL_LEGEND,
    "outline": "a cause, by number",
    "other": "other work",
    "ghost": "the other order, which nothing forbids",
    "arrow missing": "an edge that should be there, and is not",
}


def offence_scene(trace: Trace, offence: Offence, reference: Trace | None = None) -> Scene:
    """Draw the time from the first culprit to the last, and about a step on either side.

    Without a culprit's slice (an op that never ran has none), it is the whole run. Idle time of the
    devices is left out. Below it is the same time of a ``reference`` run, or its end if it is over.
    """
    ran = culprits_of(slices_of(trace), offence)
    around = round(STEPS * median(step_intervals(trace) or [trace.end]))
    start = max(0, min((item.start for item in ran), default=0) - around)
    end = min(trace.end, max((item.end for item in ran), default=trace.end) + around)
    view = view_without_idle(trace, start, max(start + 1, end))
    parts = [Part(trace.loop, times_of(view), [in_red(view, offence, view.duration)])]
    if reference is not None and reference.slices:
        start = min(view.start, max(0, reference.end - view.duration))
        same = view_without_idle(reference, start, start + view.duration)
        parts.append(Part(reference.loop, times_of(same), [lanes_of(same, view.duration)]))
    return Scene(offence.sentence, about_run(trace), parts, LEGEND, [*told(view, offence)])


def view_without_idle(trace: Trace, start: int, end: int) -> View:
    """Return the view between two times of a run, with the lanes that have work then."""
    view = replace(make_view(trace, start, end), bubbles=(), zero=0)
    used = {item.lane for item in view.slices}
    return replace(view, lanes=tuple(lane for lane in view.lanes if lane in used) or view.lanes)


def times_of(view: View) -> str:
    """Return from when to when a view is, and the length of its run."""
    return f"{ms(view.start)} to {ms(view.end)} of {ms(view.trace.end)} ms"


def culprits_of(slices: Iterable[Slice], offence: Offence) -> list[Slice]:
    """Return the slices that violated the law, by time."""
    wanted = {*offence.slices, *(offence.missing or ())}
    return [item for item in slices if item.id in wanted]


TOLD = ("wrong", "transfer")  # the edges that are drawn


def in_red(view: View, offence: Offence, duration: int) -> Lanes:
    """Return a view's lanes in run time, with frames around culprits and a missing edge.

    The contested memory is the last lane. Below it each culprit has a phrase. All other slices are
    grey, and a stream without any part in it is left out.
    """
    view = replace(view, zero=0)
    lanes, missing = lanes_of(view, duration), missing_of(view, offence)
    culprits = culprits_of(view.slices, offence)
    pair, ids = {item.id for item in missing}, {item.id for item in culprits}
    links = [
        link
        for link in lanes.links
        if {link.data["src"], link.data["dst"]} != pair and link.kind in TOLD
    ]
    red: list[list[LaneItem]] = [[] for _ in view.lanes]
    for number, item in enumerate(culprits, 1):
        span = view.clip(item.start, item.end)
        words = "" if offence.deeds else str(number)  # a phrase below has the number
        frame = LaneItem("outline", *span, words, about=f"{number}: {item.label}",
                         data={"offence": item.id})  # fmt: skip
        red[view.lanes.index(item.lane)].append(frame)
    if missing:
        first, second = missing
        rows = [view.lanes.index(item.lane) for item in missing]
        # a free has to wait until the end of its slice, any other access until the beginning
        ready = second.end if offence.waits else second.start
        leaves, arrives = (view.clip(time, time)[0] for time in (first.end, ready))
        data = {"missing": f"{first.id} {second.id}"}
        words = missing_words(missing, offence)
        links.append(LaneLink("missing", (rows[0], leaves), (rows[1], arrives), words, data))
        row, late = rows[1], second
        begin = first.start if second.start >= first.end else first.end
        if is_host(second.lane) and not is_host(first.lane):  # a host keeps its own order
            row, late, begin = rows[0], first, second.start
        other = view.clip(begin, begin + late.duration)
        red[row].append(LaneItem("ghost", *other, f"or {late.label} here", "or here"))
    involved = {row for link in links for row in (link.src[0], link.dst[0])}
    shown = [
        row
        for row, lane in enumerate(view.lanes)
        if row in involved or red[row] or is_host(lane) or is_forward(lane)
    ]
    rows_in_red = [
        replace(lanes.rows[row], spans=[*quieted(lanes.rows[row].spans, ids), *red[row]])
        for row in shown
    ]
    at = {row: place for place, row in enumerate(shown)}
    links = [
        replace(link, src=(at[link.src[0]], link.src[1]), dst=(at[link.dst[0]], link.dst[1]))
        for link in links
    ]
    if offence.cell:
        rows_in_red.append(cell_row(view, offence.cell, lanes.end, [it.id for it in culprits]))
    deeds = dict(zip(offence.slices, offence.deeds, strict=False))
    phrases = [
        LaneItem("deed", *view.clip(it.start, it.end), f"{it.label} {deeds[it.id]}", str(number))
        for number, it in enumerate(culprits, 1)
        if it.id in deeds
    ]
    last = rows_in_red[-1]
    rows_in_red[-1] = replace(last, spans=[*last.spans, *phrases])
    return replace(lanes, rows=rows_in_red, links=links)


def quieted(spans: Iterable[LaneItem], loud: set[int]) -> list[LaneItem]:
    """Return the items without flags, all quiet except the slices in ``loud``, which are ids."""
    return [
        replace(item, is_quiet="id" in item.data and item.data["id"] not in loud)
        for item in spans
        if item.kind != "flag"
    ]


def missing_of(view: View, offence: Offence) -> list[Slice]:
    """Return the two slices with no edge between them; empty if there are none in view."""
    by_id = {item.id: item for item in view.slices}
    pair = [by_id[one] for one in dict.fromkeys(offence.missing or ()) if one in by_id]
    return pair if len(pair) == 2 else []


def missing_words(missing: list[Slice], offence: Offence) -> str:
    """Return the words of the missing edge."""
    first, second = (item.label for item in missing)
    if offence.waits:
        return f"the {offence.waits} in {second} must wait for {first}"
    return f"{second} does not wait for {first}"


def told(view: View, offence: Offence) -> Iterator[str]:
    """Yield a line for each culprit without a phrase, by number, and one for a missing edge."""
    culprits = culprits_of(view.slices, offence)
    for number, item in enumerate(culprits if not offence.deeds else (), 1):
        rids = f", for {' '.join(item.rids)}" if item.rids else ""
        # a time that would round to zero is written in full
        start, end = (ms(time) if time >= 10_000 else exact(time)
                      for time in (item.start, item.end))  # fmt: skip
        yield f"{number}: {item.label} on {lane_title(item.lane)}, {start} to {end} ms{rids}"
    if missing := missing_of(view, offence):
        yield f"missing: {missing_words(missing, offence)}"
