"""What a finish costs on MLX: a row in flight, a broken chain, and memory that is kept a while."""

from __future__ import annotations

from dataclasses import dataclass

from ..trace import Trace
from .views.axes import TimeAxis, ValueAxis
from .views.lanes import NAMES as LANE_NAMES
from .views.lanes import draw_lanes
from .views.page import EDGE, LEFT, Page, about_run
from .views.series import Series, step_area
from .views.shapes import band, rect, text
from .views.steps import StepWork, requests_in, steps_of

PITCH, BOX, HEIGHT = 20, 12, 40
NAMES = {
    **LANE_NAMES,
    "stored": "it has memory: it lives",
    "stale": "it has ended; the graph in flight still writes to its memory",
}


@dataclass(frozen=True)
class Kept:
    """One request's lease, the cache that its rows write to; times in nanoseconds."""

    rid: str
    since: int  # its prompt is launched
    ended: int  # its last token is processed
    gone: int  # no graph in flight has a row for it any more


def finish_picture(trace: Trace) -> str:
    """Who computed what, how many graphs were in flight, and whose memory was kept: an SVG.

    Raises:
        NothingToShow: no step ran.
    """
    steps = steps_of(trace)
    page = Page("MLX: what a finish costs", about_run(trace, f"{len(steps)} steps"))
    x, rids = TimeAxis(trace.end), requests_in(steps)
    page.heading("Requests", "a box is one step on the device")
    draw_lanes(page, rids, x, steps, trace)
    page.top += 22
    page.heading("Graphs in flight", "launched, and not yet read by the host")
    y = ValueAxis(2, page.top + 14, page.top + 14 + HEIGHT)
    page.add(*y.draw("graphs"), *x.grid(y.top, y.bottom))
    page.add(step_area(in_flight(trace), x, y, "left", "graphs in flight"))
    page.top = y.bottom + 32
    page.heading("Caches", "a request's pages, from its first launch until no graph names it")
    for kept in kept_caches(trace, steps):
        _draw_kept(page, kept, x)
    page.add(*x.draw(page.top + 2))
    page.top += 28
    page.legend(NAMES)
    return page.finish()


def in_flight(trace: Trace) -> Series:
    """How many graphs are with the device, over time."""
    changes = [(item.end, 1) for item in trace.on("host") if item.name == "launch"]
    changes += [(item.start, -1) for item in trace.on("host") if item.name == "process"]
    series, now = [], 0
    for time, change in sorted(changes):
        now += change
        series.append((time, now))
    return list(dict(series).items())


def kept_caches(trace: Trace, steps: list[StepWork]) -> list[Kept]:
    """From when to when each request has its memory."""
    launches = {item.step: item for item in trace.on("host") if item.name == "launch"}
    processes = {item.step: item for item in trace.on("host") if item.name == "process"}
    kept = []
    for rid in requests_in(steps):
        mine = [
            (step.step, part.kind)
            for step in steps
            for part in step.parts
            if part.rid == rid and step.step in processes
        ]
        if lives := [step for step, kind in mine if kind != "wasted"]:  # else it had no token
            since, ended = launches[lives[0]].start, processes[lives[-1]].end
            kept.append(Kept(rid, since, ended, processes[mine[-1][0]].end))
    return kept


def _draw_kept(page: Page, kept: Kept, x: TimeAxis) -> None:
    y = page.top + (PITCH - BOX) / 2
    page.add(band(LEFT, page.top + 1, EDGE - LEFT, PITCH - 2), text(20, y + 10, kept.rid))
    for kind, start, end in (
        ("stored", kept.since, kept.ended),
        ("stale", kept.ended, kept.gone),
    ):
        left, width = x.span(start, end)
        about = f"{kept.rid}: {NAMES[kind]}"
        page.add(rect(kind, left, y, width, BOX, about, rid=kept.rid))
    page.top += PITCH
