"""What a finish costs on MLX: the row in flight, a broken chain, and state that is kept a while."""

from __future__ import annotations

from dataclasses import dataclass

from ..trace import Trace
from .views.axes import TimeAxis, ValueAxis
from .views.lanes import NAMES as LANE_NAMES
from .views.lanes import draw_lanes
from .views.lazy_arrays import arrays_of
from .views.page import EDGE, LEFT, Page, about_run
from .views.series import Series, step_area
from .views.shapes import band, rect, text
from .views.steps import StepWork, requests_in, steps_of

PITCH, BOX, HEIGHT = 20, 12, 40
NAMES = {
    **LANE_NAMES,
    "stored": "the runner keeps its state: it lives",
    "stale": "it has ended; its state goes at the next fresh launch",
}


@dataclass(frozen=True)
class Kept:
    """One request's state in the runner; times in nanoseconds."""

    rid: str
    since: int  # its prompt is finalized
    ended: int  # its last token is processed
    gone: int  # the next step that is launched afresh; the run's end if there is none


def finish_picture(trace: Trace) -> str:
    """Who computed what, how many graphs were in flight, and what the runner kept: an SVG.

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
    page.heading("The runner", "what it keeps of a request, from its first token on")
    for kept in kept_states(trace, steps):
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


def kept_states(trace: Trace, steps: list[StepWork]) -> list[Kept]:
    """From when to when the runner keeps each request's state."""
    processes = {item.step: item for item in trace.on("host") if item.name == "process"}
    fresh = [array.bound for array in arrays_of(trace) if not array.source]
    kept = []
    for rid in requests_in(steps):
        mine = [
            processes[step.step]
            for step in steps
            for part in step.parts
            if part.rid == rid and part.kind != "wasted" and step.step in processes
        ]
        if mine:  # else it ended before it had a token
            ended = mine[-1].end
            gone = min((time for time in fresh if time > ended), default=trace.end)
            kept.append(Kept(rid, mine[0].start, ended, gone))
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
