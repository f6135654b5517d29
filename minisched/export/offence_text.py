"""A broken law for a terminal: lanes over time, and ``!!`` where it was done."""

from __future__ import annotations

from textwrap import wrap

from ..checks.history import Offence
from ..trace import Trace
from .lane import Lane
from .letters import letters_of
from .offence_marks import about
from .offence_view import Scene, scene_of
from .text import margin_of, row
from .text_axis import draw_axis

MARK = "!"


def to_text(
    trace: Trace, offence: Offence, around_ns: int | None = None, columns: int = 100
) -> str:
    """The sentence, the few steps around it, and a line for each slice that did it.

    Raises:
        ValueError: less than 60 columns, or ``around_ns`` is negative.
    """
    if columns < 60:
        raise ValueError(f"a picture needs at least 60 columns, but got {columns}.")
    scene = scene_of(trace, offence, around_ns)
    view, margin = scene.view, margin_of([scene.view])
    cells = columns - margin
    lines = [*wrap(offence.sentence, columns), ""]
    for lane in view.lanes:
        drawn = marked(row(view, lane, view.duration, cells), scene, lane, view.duration)
        lines.append(f"{lane.title:>{margin - 2}} │{drawn}".rstrip())
    lines += [*draw_axis(view.duration, cells, margin, view.start), ""]
    for box in scene.culprits:
        lines += wrap(f"{MARK * 2} {about(box)}", columns, subsequent_indent="   ")
    if scene.missing:
        lines += wrap(f"-> missing: {scene.missing_words}", columns, subsequent_indent="   ")
    return "\n".join([*lines, "", *_legend(scene, columns), ""]).replace("\N{NO-BREAK SPACE}", " ")


def marked(drawn: str, scene: Scene, lane: Lane, longest: int) -> str:
    """A lane with ``!!`` over the slices that did it; their step stays where there is room.

    ``drawn`` are the characters of ``longest`` nanoseconds.
    """
    glyphs = list(drawn)
    for box in scene.culprits:
        if box.lane != lane:
            continue
        start, end = scene.view.clip(box.slice.start, box.slice.end)
        first = min(start * len(glyphs) // longest, len(glyphs) - 2)
        last = max(first + 2, end * len(glyphs) // longest)
        name = str(box.step) if box.step and last - first >= len(str(box.step)) + 4 else ""
        glyphs[first:last] = f"{name:{MARK}^{last - first}}"
    return "".join(glyphs)


def _legend(scene: Scene, columns: int) -> list[str]:
    names = [box.slice.name for box in scene.view.boxes if box.slice.duration]
    entries = [letters_of(names), f"{MARK * 2}\N{NO-BREAK SPACE}what did it", "numbers: steps"]
    return wrap("   ".join(filter(None, entries)), columns)
