"""Who tells whom, for a terminal: an ordered list, with an arrow for each message."""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Trace
from ..arrow_words import meaning
from ..layout import Arrow, Box, View
from ..units import ms
from .page import about_run
from .shown_steps import shown
from .text_page import TextPage


def write_sequence(trace: Trace, count: int) -> str:
    """The list of ``count`` settled steps, in order of time.

    Raises:
        NothingToShow: no step ran.
    """
    view = shown(trace, count)
    page = TextPage(
        f"{trace.loop}: who tells whom, in order",
        about_run(trace, f"steps {view.first_step} to {view.last_step}, {ms(view.duration)} ms"),
    )
    margin = max(len(lane.name) for lane in view.lanes)
    page.lines += ["", f"         ms  {'who':<{margin}}  what", *_lines(view, margin)]
    return page.finish()


def _lines(view: View, margin: int) -> Iterator[str]:
    """A numbered line a slice, and below it what it tells whom."""
    told: dict[int, list[Arrow]] = {}
    for arrow in view.arrows:
        told.setdefault(arrow.src.slice.id, []).append(arrow)
    boxes = [box for box in view.boxes if box.slice.duration or box.slice.id in told]
    for number, box in enumerate(boxes, 1):
        yield f"{number:3}. {_when(view, box):>6}  {box.lane.name:<{margin}}  {_what(box)}"
        for arrow in told.get(box.slice.id, []):
            yield " " * (margin + 15) + f"└──▶ {_whom(arrow)}: {meaning(arrow)}"


def _when(view: View, box: Box) -> str:
    """Since the view's start; what began before that has no time."""
    return "before" if box.slice.start < view.start else ms(box.slice.start - view.start)


def _what(box: Box) -> str:
    return f"{box.label} ({ms(box.slice.duration)} ms)"


def _whom(arrow: Arrow) -> str:
    return f"itself, {arrow.dst.label}" if arrow.is_level else f"{arrow.dst.lane.name}"
