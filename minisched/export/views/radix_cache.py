"""The prefix cache's tree, before and after what changed it: shared, locked, and given up."""

from __future__ import annotations

from ...trace import Trace
from ..svg_style import char_width
from .axes import TimeAxis, ValueAxis
from .page import EDGE, SIGNS, Page, about_run, labels
from .page_story import evictions
from .radix_forms import puml, text
from .radix_panel import TreePanel, draw_tree, panel_size
from .radix_story import NAMES, TITLE, Picture, changes, pictures
from .radix_tree import Moment
from .radix_words import title
from .series import most, stacked, step_area
from .shapes import line, path
from .shapes import text as write
from .wording import many, short

__all__ = ["puml", "text", "view"]
HEIGHT, ARROW, NARROW = 80, 28, 3  # pixels: the chart, between two trees; levels of a narrow tree
LEGEND = {**NAMES, "evict": "so many pages are evicted"}


def view(trace: Trace) -> str:
    """Pages over time; the tree before and after a split, a branch, an eviction; and at the end.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    trace, moments, shown = changes(trace)
    page = Page(TITLE, about_run(trace, shown))
    chosen = pictures(trace, moments)
    _draw_pages(page, trace, moments, chosen)
    for at, picture in enumerate(chosen, 1):
        _draw_picture(page, at, picture, is_last=picture.moment is moments[-1])
    page.legend(LEGEND)
    page.notes("A bold border: added, cut in two by a split, or evicted just now. A lock holds the "
               "whole path to the root.")  # fmt: skip
    return page.finish()


def _draw_pages(page: Page, trace: Trace, moments: list[Moment], chosen: list[Picture]) -> None:
    """Protected and evictable pages over time, evictions, and the numbers of the pictures below."""
    protected = [(moment.time, moment.protected) for moment in moments]
    both = stacked(protected, [(moment.time, moment.evictable) for moment in moments])
    page.heading("Pages in the tree", "the numbers: the moments shown below")
    x = TimeAxis(max(trace.end, moments[-1].time))
    y = ValueAxis(max(1, most(both)), page.top + 46, page.top + 46 + HEIGHT)
    page.add(*y.draw("pages"), *x.grid(y.top, y.bottom))
    page.add(step_area(both, x, y, "evictable", "evictable pages, on top of the protected ones"))
    page.add(step_area(protected, x, y, "protected", "protected pages"))
    beside = 0.0
    for place, picture in enumerate(chosen, 1):
        at = x.x(picture.moment.time)
        beside = max(at, beside + 11)
        page.add(line("flag", at, y.top - 22, at, y.bottom))
        page.add(write(beside, y.top - 26, str(place), "warn", "middle"))
    gone = sorted(evictions(trace).items())
    beside_signs = labels([(x.x(time), f"-{pages}") for time, pages in gone])
    for (time, pages), words in zip(gone, beside_signs, strict=True):
        at, about = x.x(time), f"{many(pages, 'page')} evicted"
        page.add(path("evict", f"M{at:.1f} {y.top - 8:.1f}{SIGNS['evict']}", about, evicted=pages))
        page.add(write(at + 8, y.top - 4, words, "small warn") if words else "")
    page.add(*x.draw(y.bottom + 2))
    page.top = y.bottom + 54


def _draw_picture(page: Page, at: int, picture: Picture, is_last: bool) -> None:
    """Before and after, beside each other where they are narrow; of the last change only after."""
    page.add(write(20, page.top, title(at, picture.moment) + ", the end" * is_last, "run"))
    story = short(picture.story, int((EDGE - 20) / char_width(11)))
    page.add(write(20, page.top + 16, story, "small faint"))
    page.top += 26
    before = TreePanel(f"{at} before", picture.before, lockers=picture.lockers_before)
    after = TreePanel(f"{at} after", picture.after, picture.changed, picture.lockers)
    both = [after] if is_last else [before, after]
    sizes = [panel_size(panel.tree) for panel in both]
    is_narrow = len(both) == 2 and max(width for width, _ in sizes) <= 44 + NARROW * 168
    room = (EDGE - 20 - ARROW) / 2 if is_narrow else EDGE - 20
    for place, (panel, size) in enumerate(zip(both, sizes, strict=True)):
        left = 20 + place * (room + ARROW) * is_narrow
        page.add(write(left, page.top + 10, panel.name.split()[1], "small bold"))
        draw_tree(page, panel, left, page.top + 16, room)
        if not is_narrow:
            page.top += size[1] + 24
    if is_narrow:
        middle = page.top + 16 + sizes[0][1] / 2 - 4
        page.add(write(20 + room + ARROW / 2 - 8, middle, "→", "title faint", "middle"))
        page.top += max(height for _, height in sizes) + 24
    page.top += 16
