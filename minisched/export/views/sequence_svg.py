"""Who tells whom, in order: host and streams as lifelines, time running down."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from ...trace import Trace
from ..layout import View
from ..svg_legend import draw_legend
from ..svg_style import char_width
from ..svg_waits import FLAG, about, has_waits, wait_style, waits_of
from ..units import ms
from .page import EDGE, Page, about_run
from .sequence_arrows import Messages
from .sequence_layout import LEFT, Lifelines, lay_out
from .sequence_shapes import boxes, bubbles, labels
from .shapes import band, line, path, text
from .shown_steps import shown

STYLE = (
    "<style>.said { font-size: 11px; stroke: var(--lane); stroke-width: 3px; paint-order: stroke }"
    "\n.life { stroke: var(--faint); stroke-dasharray: 4 4 } .begins { stroke: var(--faint) }"
    "\n.box.wait { fill: var(--lane) }</style>"
)
HEAD = 46  # pixels for the names of the lifelines


def draw_sequence(trace: Trace, count: int) -> str:
    """The picture of ``count`` settled steps.

    Raises:
        NothingToShow: no step ran.
    """
    view = shown(trace, count)
    page = Page(
        f"{trace.loop}: who tells whom, in order",
        about_run(trace, "time runs down, in order but not to scale"),
    )
    lines = lay_out(view, page.top + HEAD)
    page.add(STYLE, *([wait_style()] if has_waits([view]) else []))
    page.add(*_lifelines(lines, page.top - 10), *_begins(lines), *_clock(lines))
    page.add(*bubbles(lines), *boxes(lines), *_flags(lines))
    page.add(*Messages(lines).draw(), *labels(lines))
    legend, page.top = draw_legend([view], lines.bottom + 34, EDGE)
    page.add(*legend)
    return page.finish()


def _lifelines(lines: Lifelines, top: float) -> Iterator[str]:
    """A background for each side, a name and a dashed line for each lane."""
    for side in ("host", "device"):
        lanes = [lane for lane in lines.view.lanes if lane.side == side]
        if lanes:
            left = lines.x(lanes[0]) - lines.pitch / 2 + 3
            width = lines.pitch * len(lanes) - 6
            yield band(left, top, width, lines.bottom - top + 8)
            yield text(left + width / 2, top + 13, side, "small faint", "middle")
    for lane in lines.view.lanes:
        x = lines.x(lane)
        for at, words in enumerate(wrap(lane.name, int(lines.pitch / char_width(12)))):
            yield text(x, top + 29 + 13 * at, words, "bold", "middle", lane=lane.key)
        yield line("life", x, top + HEAD + 4, x, lines.bottom + 6)


def _begins(lines: Lifelines) -> Iterator[str]:
    """A line where the first device begins with a step."""
    first = next((lane for lane in lines.view.lanes if _is_first(lines.view, lane.key)), None)
    for box in lines.view.boxes:
        item = box.slice
        if item.name == "forward" and box.lane == first and item.start >= lines.view.start:
            y = lines.y(item.start)
            yield line("begins", LEFT - 8, y, EDGE, y, begins=box.step)
            yield text(EDGE - 2, y - 4, f"step {box.step} begins", "said", "end")


def _is_first(view: View, key: str) -> bool:
    return any(box.lane.key == key and box.slice.name == "forward" for box in view.boxes)


def _clock(lines: Lifelines) -> Iterator[str]:
    """Milliseconds since the view's start, wherever there is room for them."""
    yield text(LEFT - 12, lines.heights[lines.view.start] - 16, "ms", "small faint", "end")
    free = 0.0
    for time, y in lines.heights.items():
        if y >= free:
            yield text(LEFT - 12, y + 4, ms(time - lines.view.start), "small faint", "end")
            free = y + 14


def _flags(lines: Lifelines) -> Iterator[str]:
    """A flag on the first lifeline where the loop decided that an op waits."""
    x = lines.x(lines.view.lanes[0]) - lines.width / 2 - 6
    times = list(lines.heights)
    for mark in waits_of(lines.view):
        nearest = min(times, key=lambda time: abs(time - mark.time))
        said = f"{about(mark)} at {ms(mark.time)} ms"
        yield path("flag", f"M{x:.1f} {lines.heights[nearest]:.1f}{FLAG}", said, mark="wait")
