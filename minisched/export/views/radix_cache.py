"""The prefix cache's tree at a few moments: what is shared, locked, and given up."""

from __future__ import annotations

from dataclasses import replace

from ...trace import Trace
from ..svg_style import char_width
from ..units import ms
from .axes import TimeAxis, ValueAxis
from .marks import NothingToShow, named, number, word
from .page import EDGE, Page, about_run
from .radix_panel import draw_tree, panel_size
from .radix_tree import Moment, moments_of, tree_at
from .series import most, stacked, step_area
from .shapes import line, text
from .wording import short

MOST_MOMENTS, PANELS, HEIGHT = 200, 4, 80
NAMES = {
    "protected": "protected: a running request has locked it",
    "evictable": "evictable",
    "evicted": "evicted just now",
}
WORDS = {"insert": "inserted", "admit": "admitted", "retraction": "retracted"}


def view(trace: Trace) -> str:
    """Pages over time, and the tree as it splits, branches, evicts, and at the end.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    moments = moments_of(trace)
    if not any(moment.count("radix add") for moment in moments):
        raise NothingToShow("the trace has no radix add mark: nothing ever entered a prefix cache.")
    shown = f"{len(moments)} changes"
    if len(moments) > MOST_MOMENTS:
        shown = f"the first {MOST_MOMENTS} of {shown}"
        moments = moments[:MOST_MOMENTS]
        end = moments[-1].time
        trace = replace(trace, marks=tuple(mark for mark in trace.marks if mark.time <= end))
    page = Page("radix_cache: the tree of cached prefixes", about_run(trace, shown))
    chosen = choose(moments)
    _draw_pages(page, trace, moments, chosen)
    _draw_trees(page, trace, chosen)
    page.legend(NAMES)
    page.notes("A bold border: added, put in by a split, or evicted just now. A lock holds the "
               "whole path to the root.")  # fmt: skip
    return page.finish()


def choose(moments: list[Moment]) -> list[Moment]:
    """The moments worth a picture, in order of time."""
    split, evict = (first(moments, name) for name in ("radix split", "radix evict"))
    branched = first(moments, "radix add", since=split.time + 1) if split else None
    fullest = max(moments, key=lambda moment: moment.protected)
    worth = [split, evict, moments[-1], branched, fullest, first(moments, "radix add")]
    found = list({moment.time: moment for moment in worth if moment}.values())[:PANELS]
    return sorted(found, key=lambda moment: moment.time)


def first(moments: list[Moment], name: str, since: int = 0) -> Moment | None:
    """The first moment at which something of that name happened."""
    return next((m for m in moments if m.time >= since and m.count(name)), None)


def _draw_pages(page: Page, trace: Trace, moments: list[Moment], chosen: list[Moment]) -> None:
    """Protected and evictable pages over time, with the numbers of the pictures below."""
    protected = [(moment.time, moment.protected) for moment in moments]
    both = stacked(protected, [(moment.time, moment.evictable) for moment in moments])
    page.heading("Pages in the tree", "the numbers: the moments shown below")
    x = TimeAxis(max(trace.end, moments[-1].time))
    y = ValueAxis(max(1, most(both)), page.top + 30, page.top + 30 + HEIGHT)
    page.add(*y.draw("pages"), *x.grid(y.top, y.bottom))
    page.add(step_area(both, x, y, "evictable", "evictable pages, on top of the protected ones"))
    page.add(step_area(protected, x, y, "protected", "protected pages"))
    beside = 0.0
    for place, moment in enumerate(chosen, 1):
        at = x.x(moment.time)
        beside = max(at, beside + 11)
        page.add(line("flag", at, y.top - 6, at, y.bottom))
        page.add(text(beside, y.top - 10, str(place), "warn", "middle"))
    page.add(*x.draw(y.bottom + 2))
    page.top = y.bottom + 54


def _draw_trees(page: Page, trace: Trace, chosen: list[Moment]) -> None:
    """Two pictures beside each other where they are narrow, else one below the other."""
    trees = [tree_at(trace, moment.time) for moment in chosen]
    sizes = [panel_size(tree) for tree in trees]
    columns = 2 if max(width for width, _ in sizes) <= (EDGE - 20) / 2 - 16 else 1
    room = (EDGE - 20) / columns
    for row in range(0, len(chosen), columns):
        for at in range(row, min(row + columns, len(chosen))):
            left = 20 + (at - row) * room
            title = f"{at + 1}  at {ms(chosen[at].time)} ms"
            page.add(text(left, page.top, title, "run"))
            story = short(_story(trace, chosen[at]), int((room - 16) / char_width(11)))
            page.add(text(left, page.top + 16, story, "small faint"))
            draw_tree(page, trees[at], chosen[at], left, page.top + 28, room - 16)
        page.top += 28 + max(height for _, height in sizes[row : row + columns]) + 22


def _story(trace: Trace, moment: Moment) -> str:
    """What happened, in words."""
    whose = [
        f"{word(mark, 'rid')} {WORDS[mark.name]}; "
        for mark in named(trace, *WORDS)
        if mark.time == moment.time
    ]
    taken = sum(number(mark, "delta") > 0 for mark in moment.marks if mark.name == "radix lock")
    counts = {
        "added": moment.count("radix add"),
        "split": moment.count("radix split"),
        "evicted": moment.count("radix evict"),
    }
    words = [f"{count} {what}" for what, count in counts.items() if count]
    given = moment.count("radix lock") - taken
    words += [f"{taken} locked"] * bool(taken) + [f"{given} unlocked"] * bool(given)
    return "".join(whose) + "nodes: " + ", ".join(words)
