"""The same picture for a terminal: one character is one stretch of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from textwrap import wrap

from .layout import Box, Lane, View
from .looks import LETTERS
from .units import exact, tick_step

# -- The time axis below the lanes of a text -------------------------------------------------------


def draw_axis(longest: int, cells: int, margin: int, start: int = 0) -> list[str]:
    """Two lines: ``cells`` characters for ``longest`` nanoseconds from ``start`` on.

    ``margin`` is how many characters stand before the first cell. Marks are at round times, and a
    number stands where there is room for it.
    """
    marks, numbers = ["─"] * cells, [" "] * cells
    longest, step, free = max(1, longest), tick_step(max(1, longest)), 0
    for time in range(-(-start // step) * step, start + longest + 1, step):
        cell, said = min((time - start) * cells // longest, cells - 1), exact(time)
        marks[cell] = "┴"
        if free <= cell <= cells - len(said):
            numbers[cell : cell + len(said)] = said
            free = cell + len(said) + 1
    unit = "time in ms" if margin >= 12 else "ms"
    return [
        " " * (margin - 1) + "└" + "".join(marks),
        f"{unit:>{margin - 2}}  " + "".join(numbers).rstrip(),
    ]


# -- A letter for every phase and op, in the texts for a terminal: the host's small, ops' large ----

OTHER = "?"


def letter(name: str) -> str:
    """The letter of a phase or op; one that later designs add has none of its own."""
    return LETTERS.get(name, OTHER)


def letters_of(names: list[str]) -> str:
    """What the letters of these names mean, with spaces that hold each entry together."""
    return "   ".join(f"{letter(name)}\N{NO-BREAK SPACE}{name}" for name in dict.fromkeys(names))


BUBBLE, WAIT = "╱", "╳"


def wrong_tokens(view: View, columns: int) -> list[str]:
    """A line for each slice that took a wrong token, and where that came from."""
    lines = []
    for item in view.wrong_tokens:
        sources = [one.src.label for one in view.arrows if one.wrong and one.dst is item.box]
        came_from = f", from {', '.join(sources)}" if sources else ""
        lines += wrap(f"wrong token for {item.box.label}: {item.words}{came_from}", columns)
    return lines


def margin_of(views: Sequence[View]) -> int:
    """Columns for the longest name of a lane, and a line after it."""
    return max(len(lane.title) for view in views for lane in view.lanes) + 3


def row(view: View, lane: Lane, longest: int, cells: int) -> str:
    """One lane, ``cells`` characters for ``longest`` nanoseconds."""
    drawn = [" "] * cells
    for bubble in view.bubbles:
        if bubble.lane == lane:
            glyph = WAIT if bubble.reason else BUBBLE
            _fill(drawn, *view.clip(bubble.start, bubble.end), longest, glyph)
    boxes = [box for box in view.on(lane) if box.slice.duration > 0]
    for cell, box in _most_of_each_cell(view, boxes, longest, cells).items():
        drawn[cell] = letter(box.slice.name)
    for box in boxes:
        _write_step(drawn, box, view, longest)
    return "".join(drawn)


def _most_of_each_cell(
    view: View, boxes: Sequence[Box], longest: int, cells: int
) -> dict[int, Box]:
    """The box that takes the most of each cell's time, the first of equals; one pass over boxes."""
    edges = [cell * longest // cells for cell in range(cells + 1)]
    most: dict[int, tuple[int, Box]] = {}
    for box in boxes:
        start, end = view.clip(box.slice.start, box.slice.end)
        cell = bisect_right(edges, start) - 1
        while cell < cells and edges[cell] < end:
            common = min(end, edges[cell + 1]) - max(start, edges[cell])
            if common > most.get(cell, (0, box))[0]:
                most[cell] = common, box
            cell += 1
    return {cell: box for cell, (_, box) in most.items()}


def _fill(drawn: list[str], start: int, end: int, longest: int, glyph: str) -> None:
    cells = len(drawn)
    for cell in range(start * cells // longest, -(-end * cells // longest)):
        drawn[cell] = glyph


def _write_step(drawn: list[str], box: Box, view: View, longest: int) -> None:
    """The step's number in the middle of a box that has room for it."""
    start, end = view.clip(box.slice.start, box.slice.end)
    cells, text = len(drawn), str(box.step)
    first, last = -(-start * cells // longest), end * cells // longest
    if box.step and box.slice.name != "wait" and last - first >= len(text) + 2:
        at = (first + last - len(text)) // 2
        drawn[at : at + len(text)] = text
