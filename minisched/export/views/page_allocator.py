"""KV memory as a map over time: which page and which row of the request table is whose."""

from __future__ import annotations

from ...trace import Trace
from ..state import Panel
from .axes import TimeAxis, ValueAxis
from .marks import named, word
from .page import SIGNS, Page, about_run, labels
from .page_bands import KINDS, draw_bands
from .page_forms import puml, text
from .page_map import draw_map
from .page_story import (
    NAMES,
    about_memory,
    evictions,
    highest,
    is_large,
    panels,
    shown_part,
    use_words,
)
from .series import most, stacked, step_area
from .shapes import path
from .shapes import text as write
from .stay_counts import count

__all__ = ["puml", "text", "view"]
HEIGHT, APART = 56, 11  # pixels: the chart, between two signs
LEGEND = {
    **NAMES,
    "lane": "free",
    "flag-head": "retraction",
    "evict": "the prefix cache evicts so many pages",
}


def view(trace: Trace) -> str:
    """How many pages are whose, then the map of them; of very many pages, bands of them.

    Raises:
        NothingToShow: no step ran, or no page was ever given to anybody.
    """
    part, shown = shown_part(trace)
    pages, rows = panels(part)
    page = Page("page_allocator: whose memory is", about_run(part, shown, *about_memory(trace)))
    x, notes = TimeAxis(part.end), [use_words(pages)]
    _draw_counts(page, pages, x)
    _draw_flags(page, part, x)
    if is_large(pages):
        notes.append(draw_bands(page, pages, highest(pages), x))
    else:
        draw_map(page, pages, highest(pages), "page", x)
    page.top += 28
    page.heading("Rows of the request table", "a request has one for as long as it has memory")
    draw_map(page, rows, highest(rows), "row", x)
    page.add(*x.draw(page.top + 2))
    page.top += 28
    page.legend(LEGEND)
    page.notes(*notes)
    return page.finish()


def _draw_counts(page: Page, pages: Panel, x: TimeAxis) -> None:
    """Pages by whose they are, stacked."""
    page.heading("How many pages are in use", "one colour on top of the other")
    there = {stay.kind for stay in pages.stays}
    kinds = [kind for kind in KINDS if kind in there]
    series: list[tuple[int, int]] = []
    sums = [series := stacked(series, count(pages.stays, kind)) for kind in kinds]
    y = ValueAxis(max(1, most(*sums)), page.top + 16, page.top + 16 + HEIGHT)
    page.add(*y.draw("pages"), *x.grid(y.top, y.bottom))
    for kind, one in reversed([*zip(kinds, sums, strict=True)]):
        page.add(step_area(one, x, y, kind, f"{NAMES[kind]}, and what is below"))
    page.top = y.bottom + 34


def _draw_flags(page: Page, trace: Trace, x: TimeAxis) -> None:
    """The heading of the map; above it who was retracted, and when the cache gave up pages."""
    page.heading("Pages", "each in whose hands, from one moment to another")
    page.top += 16
    marks = [m for m in named(trace, "retraction") if m.attrs.get("side") != "prefill"]
    flags = [(x.x(mark.time), word(mark, "rid"), "flag-head") for mark in marks]
    flags += [(at, str(pages), "evict") for at, pages in _evictions(trace, x)]
    flags.sort()
    texts = labels([(at, f"-{words}" * (kind == "evict") or words) for at, words, kind in flags])
    for (at, words, kind), label in zip(flags, texts, strict=True):
        event = {"evicted" if kind == "evict" else "rid": words}
        about = f"{words} pages are evicted" if kind == "evict" else f"{words} is retracted"
        page.add(path(kind, f"M{at:.1f} {page.top:.1f}{SIGNS[kind]}", about, **event))
        page.add(write(at + 9, page.top + 4, label, "small warn") if label else "")
    page.top += 9


def _evictions(trace: Trace, x: TimeAxis) -> list[tuple[float, int]]:
    """Where pages were evicted, and how many; those too close to be told apart are one."""
    found: list[tuple[float, int]] = []
    for time, pages in sorted(evictions(trace).items()):
        if found and x.x(time) - found[-1][0] < APART:
            found[-1] = (found[-1][0], found[-1][1] + pages)
        else:
            found.append((x.x(time), pages))
    return found
