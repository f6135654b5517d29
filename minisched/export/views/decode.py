"""The running set over time: who computes in which step, who joins, who leaves, who gives way."""

from __future__ import annotations

from ...trace import Trace
from .axes import TimeAxis, ValueAxis
from .lanes import NAMES, draw_lanes
from .page import Page, about_run
from .series import counter, most, step_line
from .steps import opening, requests_in, steps_of

MOST_STEPS, MOST_LANES, HEIGHT = 100, 24, 64


def view(trace: Trace) -> str:
    """One lane a request, under the number of running and waiting ones.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps = steps_of(part)
    rids = requests_in(steps)
    if len(rids) > MOST_LANES:
        shown += f", the first {MOST_LANES} of {len(rids)} requests"
    page = Page("decode: the set of running requests over time", about_run(trace, shown))
    x = TimeAxis(part.end)
    _draw_counts(page, part, x)
    page.heading("Requests", "a box is one step on the device; the line: it holds memory")
    draw_lanes(page, rids[:MOST_LANES], x, steps, part)
    page.legend(NAMES)
    return page.finish()


def _draw_counts(page: Page, trace: Trace, x: TimeAxis) -> None:
    running, waiting = counter(trace, "running"), counter(trace, "waiting")
    page.heading("How many", "solid: running (they have a lease); dashed: waiting")
    y = ValueAxis(max(1, most(running, waiting)), page.top + 16, page.top + 16 + HEIGHT)
    page.add(*y.draw("requests"), *x.grid(y.top, y.bottom))
    page.add(step_line(waiting, x, y, "second", "waiting"), step_line(running, x, y, "", "running"))
    page.top = y.bottom + 34
