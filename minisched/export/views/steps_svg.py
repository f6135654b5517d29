"""The steps of a loop one under the other: what each goes through, and how far two overlap."""

from __future__ import annotations

from itertools import pairwise

from ...trace import Trace
from ..svg_legend import draw_legend
from ..svg_style import char_width
from ..svg_waits import has_waits, wait_style
from ..units import ms
from .axes import TimeAxis
from .page import EDGE, Page, about_run
from .shapes import band, line, text
from .steps_chart import GAP, LEFT, Chart
from .steps_rows import StepRow, rows_of, steps_view
from .steps_story import rhythm, together

STYLE = (
    "<style>.both { fill: var(--token); opacity: .17 } .arrow.level { marker-end: none }\n"
    ".span { stroke: var(--token); stroke-width: 1.2 } .spanned { fill: var(--token) }</style>"
)


def draw_steps(trace: Trace, count: int) -> str:
    """The picture; above each step stands how long it was on its way with the one before.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    view = steps_view(trace, rows)
    page = Page(
        f"{trace.loop}: step under step",
        about_run(trace, "0 is when the first of these steps is scheduled"),
    )
    chart = Chart(view, rows, TimeAxis(view.duration, left=LEFT), page.top + 18)
    page.add(STYLE, *([wait_style()] if has_waits([view]) else []))
    page.heading(rhythm(rows))
    page.add(*chart.x.grid(chart.top, chart.bottom))
    for row in rows:
        page.add(*_background(chart, row))
    pairs = [(a, b) for a, b in pairwise(rows) if a.side == b.side and together(a, b)]
    for before, row in pairs:
        page.add(_tint(chart, before, row))
    page.add(*chart.boxes(), *chart.arrows(), *chart.flags(), *chart.x.draw(chart.bottom + 6))
    for before, row in pairs:
        page.add(*_measure(chart, before, row))
    legend, page.top = draw_legend([view], chart.bottom + 56, EDGE)
    page.add(*legend)
    if pairs:
        page.top += 22
        page.add(band(20, page.top - 18, 18, 12, "both"))
        page.add(text(44, page.top - 8, "the step above is on its way, too"))
    return page.finish()


def _background(chart: Chart, row: StepRow) -> list[str]:
    """The lanes of a step, as long as it was on its way, and its name."""
    drawn, (left, width) = [], chart.span(row.start, row.end)
    for lane in row.lanes:
        y = chart.y(lane)
        drawn.append(band(left, y - 2, width, 21))
        side = "thread" if " thread" in lane.name else lane.side
        drawn.append(text(LEFT - 8, y + 13, side, "small faint", "end"))
    y = chart.y(row.lanes[0])
    drawn.append(text(20, y + 13, row.name, "bold"))
    drawn.append(text(20, y + 29, _who(row), "small faint"))
    return drawn


def _who(row: StepRow) -> str:
    """``decode, 4 rows``."""
    item = next(box.slice for box in row.boxes if box.slice.name == "forward")
    return f"{item.mode}, {len(item.rids)} row{'s' * (len(item.rids) != 1)}"


def _tint(chart: Chart, before: StepRow, row: StepRow) -> str:
    """The time in which a step and the one above it were both on their way."""
    (left, width), top = chart.span(row.start, min(before.end, row.end)), chart.y(row.lanes[0])
    return band(left, top - 2, width, chart.y(row.lanes[-1]) - top + 21, "both")


def _measure(chart: Chart, before: StepRow, row: StepRow) -> list[str]:
    """How long that was."""
    left, width = chart.span(row.start, min(before.end, row.end))
    y, right = chart.y(row.lanes[0]) - GAP / 2 - 1, left + width
    words = f"{ms(together(before, row))} ms together"
    room = len(words) * char_width(11)
    middle = min(max(left + width / 2, LEFT + room / 2), EDGE - room / 2)
    return [
        line("span", left, y, right, y, overlap=row.step),
        line("span", left, y - 4, left, y + 4),
        line("span", right, y - 4, right, y + 4),
        band(middle - room / 2, y - 7, room, 14, "halo"),
        text(middle, y + 4, words, "small spanned", "middle"),
    ]
