"""Retraction: memory runs out, somebody gives theirs back, and pays by computing it again."""

from __future__ import annotations

from ...trace import Mark, Trace
from .axes import TimeAxis, ValueAxis
from .lanes import NAMES, draw_lanes
from .marks import word
from .page import SIGNS, Page, about_run, labels
from .retraction_forms import TITLE, bills, course, lanes_of, puml, retractions, text
from .series import counter, most, stacked, step_area, step_line
from .shapes import line, path
from .shapes import text as write
from .steps import opening, requests_in, steps_of

__all__ = ["puml", "text", "view"]
MOST_STEPS, MOST_NOTES, HEIGHT = 150, 8, 90
LEGEND = {
    "stored": "KV slots held by requests",
    "evictable": "cached KV slots that can be evicted",
    **NAMES,
}


def view(trace: Trace) -> str:
    """Memory over time with every retraction, the new token ratio, and who paid what.

    Raises:
        NothingToShow: no step ran, or nobody was retracted.
    """
    part, shown = opening(trace, MOST_STEPS)
    marks = retractions(part)
    page = Page(TITLE, about_run(trace, shown))
    x, steps = TimeAxis(part.end), steps_of(part)
    _draw_memory(page, part, x, marks)
    _draw_ratio(page, part, x, marks)
    page.heading("Requests", "a box is one step on the device; the line: it holds memory")
    draw_lanes(page, lanes_of(requests_in(steps), marks), x, steps, part)
    page.legend(LEGEND)
    page.notes(*bills(part, marks, steps, MOST_NOTES))
    return page.finish()


def _draw_memory(page: Page, trace: Trace, x: TimeAxis, marks: list[Mark]) -> None:
    used, cached = counter(trace, "kv used"), counter(trace, "kv cached")
    both = stacked(used, cached)
    page.heading("Memory", "the flags: a request is retracted")
    y = ValueAxis(max(1, most(both)), page.top + 26, page.top + 26 + HEIGHT)
    page.add(*y.draw("KV slots"), *x.grid(y.top, y.bottom))
    if most(cached):
        page.add(step_area(both, x, y, "evictable", "held or cached"))
    page.add(step_area(used, x, y, "stored", "held by requests"))
    flags = [(x.x(mark.time), word(mark, "rid")) for mark in marks]
    for (at, rid), words in zip(flags, labels(flags), strict=True):
        page.add(line("flag", at, y.top - 12, at, y.bottom))
        page.add(path("flag-head", f"M{at:.1f} {y.top - 12:.1f}{SIGNS['flag-head']}", rid, rid=rid))
        page.add(write(at + 9, y.top - 9, words, "small warn") if words else "")
    page.top = y.bottom + 34


def _draw_ratio(page: Page, trace: Trace, x: TimeAxis, marks: list[Mark]) -> None:
    """The share of what is still to come that admission keeps memory back for."""
    ratio = counter(trace, "new token ratio")
    if not ratio:
        return
    page.heading("New token ratio", course(ratio))
    y = ValueAxis(max(1, most(ratio)), page.top + 20, page.top + 20 + HEIGHT / 2)
    page.add(*y.draw("1/1000"), *x.grid(y.top, y.bottom))
    page.add(step_line(ratio, x, y, "", "new token ratio"))
    page.add(*(line("flag", x.x(mark.time), y.top, x.x(mark.time), y.bottom) for mark in marks))
    page.top = y.bottom + 34
