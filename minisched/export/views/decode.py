"""The running set over time: who joins, who leaves and why, who gives way, who is a zombie."""

from __future__ import annotations

from ...trace import Trace
from ..state import Stay, up_to
from ..state.requests import changes_of, stays_of
from ..state.side import side_words
from .axes import TimeAxis, ValueAxis
from .decode_forms import puml, text
from .page import Page, about_run
from .series import most, stacked, step_area, step_line
from .set_lanes import NAMES, STEPS, draw_set
from .set_story import MOST_LANES, MOST_STEPS, TITLE, requests_of
from .stay_counts import count
from .steps import opening, steps_of

__all__ = ["puml", "text", "view"]
HEIGHT = 64


def view(trace: Trace) -> str:
    """How many there are in the set, then one lane a request.

    Raises:
        NothingToShow: no step ran.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps, stays = steps_of(part), up_to(stays_of(part), part.end)
    rids = requests_of(stays, steps)
    if len(rids) > MOST_LANES:
        shown += f", the first {MOST_LANES} of {len(rids)} requests"
    page = Page(TITLE, about_run(trace, shown, *filter(None, [side_words(trace)])))
    x = TimeAxis(part.end)
    _draw_counts(page, stays, x)
    page.heading("Who", "above: where the request is; below: what the device computes for it")
    draw_set(page, rids[:MOST_LANES], x, stays, changes_of(part), steps, part)
    page.legend(NAMES | STEPS)
    return page.finish()


def _draw_counts(page: Page, stays: list[Stay], x: TimeAxis) -> None:
    running, waiting = count(stays, "admitted"), count(stays, "queued")
    both = stacked(running, count(stays, "wasted"))
    page.heading("How many", "filled: in the set, and zombies on top; dashed line: waiting")
    y = ValueAxis(max(1, most(both, waiting)), page.top + 16, page.top + 16 + HEIGHT)
    page.add(*y.draw("requests"), *x.grid(y.top, y.bottom))
    page.add(step_area(both, x, y, "wasted", "in the set or zombies"))
    page.add(step_area(running, x, y, "admitted", "in the set"))
    page.add(step_line(waiting, x, y, "under", ""), step_line(waiting, x, y, "second", "waiting"))
    page.top = y.bottom + 34
