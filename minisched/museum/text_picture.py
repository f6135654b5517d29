"""An exhibit's two runs as text, with a line of marks below the lanes of what did it."""

from __future__ import annotations

from textwrap import wrap

from ..checks.offence import Offence
from ..export.lane import Lane
from ..export.layout import View
from ..export.letters import letters_of
from ..export.text import margin_of, row
from ..export.text_axis import draw_axis

MARK = "▲"
NO_BREAK = "\N{NO-BREAK SPACE}"


def text_picture(views: list[View], offence: Offence, columns: int = 100) -> list[str]:
    """The run with the bug above the healthy one, on one axis, ``columns`` characters wide.

    Raises:
        ValueError: less than 60 columns.
    """
    if columns < 60:
        raise ValueError(f"a picture needs at least 60 columns, but got {columns}.")
    margin = margin_of(views)
    cells, longest = columns - margin, max(1, *(view.duration for view in views))
    lines: list[str] = []
    for view, title in zip(views, ("with the bug", "without it"), strict=True):
        lines.append(f"{title}:")
        for lane in view.lanes:
            lines.append(f"{lane.title:>{margin - 2}} │{row(view, lane, longest, cells)}".rstrip())
            marks = marks_of(view, lane, offence, longest, cells) if view is views[0] else ""
            lines += [" " * margin + marks] if marks else []
    lines += draw_axis(longest, cells, margin, views[0].start)
    names = [box.slice.name for view in views for box in view.boxes if box.slice.duration]
    entries = [letters_of(names), "numbers: steps".replace(" ", NO_BREAK)]
    legend = wrap("   ".join([*entries, f"{MARK} what did it".replace(" ", NO_BREAK)]), columns)
    return [*lines, "", *(line.replace(NO_BREAK, " ") for line in legend)]


def marks_of(view: View, lane: Lane, offence: Offence, longest: int, cells: int) -> str:
    """A mark below every character of the slices that did it; empty if none is on this lane."""
    drawn = [" "] * cells
    for box in view.on(lane):
        if box.slice.id in offence.slices:
            start, end = view.clip(box.slice.start, box.slice.end)
            first = min(start * cells // longest, cells - 1)
            for at in range(first, max(first + 1, min(end * cells // longest, cells))):
                drawn[at] = MARK
    return "".join(drawn).rstrip()
