"""The steps of a loop for a terminal: a lane for each step's host and device, and the moments."""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Trace
from ..layout import Box, View
from ..letters import letter, letters_of
from ..text_axis import draw_axis
from ..units import ms
from .page import about_run
from .steps_rows import StepRow, rows_of, steps_view
from .steps_story import rhythm, together
from .text_page import TextPage, columns_here

HEADS = ("step", "scheduled", "launched", "on the device", "processed", "both on their way")
BOTH = "both on their way: how long this step and the one above overlap, from schedule to process"


def write_steps(trace: Trace, count: int) -> str:
    """The lanes and a table of moments.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    view = steps_view(trace, rows)
    page = TextPage(f"{trace.loop}: step under step", about_run(trace))
    page.heading(rhythm(rows))
    margin = max(len(lane.title) for lane in view.lanes) + 3
    cells = columns_here() - margin
    for lane in view.lanes:
        page.lines.append(f"{lane.title:>{margin - 2}} │{draw_lane(view, view.on(lane), cells)}")
    page.lines = [line.rstrip() for line in page.lines]
    page.lines += draw_axis(view.duration, cells, margin)
    page.heading("Moments", "ms since the first of these steps was scheduled")
    page.table(HEADS, list(_moments(view, rows)))
    page.write("", BOTH)
    names = [box.slice.name for box in view.boxes if box.slice.duration]
    page.write("", letters_of(names))
    return page.finish()


def draw_lane(view: View, boxes: tuple[Box, ...], cells: int) -> str:
    """One lane: every slice that takes time has a letter of its own, if it must beside its place.

    A longer one has its letter as often as it has room.
    """
    drawn, free, scale = "", 0, max(1, view.duration)
    longer = [box for box in boxes if box.slice.duration]
    for left, box in zip(range(len(longer), 0, -1), longer, strict=True):
        start, end = view.clip(box.slice.start, box.slice.end)
        first = min(max(free, start * cells // scale), cells - left)
        free = min(max(first + 1, -(-end * cells // scale)), cells - left + 1)
        drawn += " " * (first - len(drawn)) + letter(box.slice.name) * (free - first)
    return drawn


def _moments(view: View, rows: list[StepRow]) -> Iterator[list[str]]:
    """A line of the table for each step."""
    for before, row in zip([None, *rows], rows, strict=False):
        launches = [b.slice.end for b in row.boxes if b.slice.name.startswith("launch")]
        device = " to ".join(ms(time - view.start) for time in row.device_span)
        is_same = before is not None and before.side == row.side
        common = f"{ms(together(before, row))} ms" if before and is_same else ""
        launched = ms(max(launches) - view.start) if launches else ""
        yield [row.name, ms(row.start - view.start), launched, device,
               ms(row.end - view.start), common]  # fmt: skip
