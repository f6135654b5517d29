"""An exhibit's two runs as text, on one axis: ``!!`` where it was done."""

from __future__ import annotations

from textwrap import wrap

from ..export.layout import View
from ..export.letters import letters_of
from ..export.offence_marks import about
from ..export.offence_text import MARK, marked
from ..export.offence_view import Scene
from ..export.text import margin_of, row, wrong_tokens
from ..export.text_axis import draw_axis

NO_BREAK = "\N{NO-BREAK SPACE}"
LEAST = 36  # columns: the names of lanes, and some cells


def text_picture(scene: Scene, healthy: View, columns: int = 100) -> list[str]:
    """The run with the bug, who did it, and the healthy run, ``columns`` characters wide.

    Raises:
        ValueError: less than 36 columns.
    """
    if columns < LEAST:
        raise ValueError(f"a picture needs at least {LEAST} columns, but got {columns}.")
    views = [scene.view, healthy]
    margin, longest = margin_of(views), max(view.duration for view in views)
    lines = []
    for view, title in zip(views, ("with the bug", "without it"), strict=True):
        lines.append(f"{title}:")
        for lane in view.lanes:
            drawn = row(view, lane, longest, columns - margin)
            drawn = marked(drawn, scene, lane, longest) if view is scene.view else drawn
            lines.append(f"{lane.title:>{margin - 2}} │{drawn}".rstrip())
        lines += wrong_tokens(view, columns)
    lines += [*draw_axis(longest, columns - margin, margin, scene.view.start), ""]
    for box in scene.culprits:
        lines += wrap(f"{MARK * 2} {about(box)}", columns, subsequent_indent="   ")
    if scene.missing:
        lines += wrap(f"-> missing: {scene.missing_words}", columns, subsequent_indent="   ")
    return [*lines, "", *legend(views, columns)]


def legend(views: list[View], columns: int) -> list[str]:
    """What letters and marks mean."""
    names = [box.slice.name for view in views for box in view.boxes if box.slice.duration]
    entries = [letters_of(names), f"{MARK * 2}{NO_BREAK}what did it", f"numbers:{NO_BREAK}steps"]
    return [line.replace(NO_BREAK, " ") for line in wrap("   ".join(entries), columns)]
