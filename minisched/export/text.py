"""The same picture for a terminal: one character is one stretch of time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from textwrap import wrap

from ..checks.overlap import measure
from ..trace import Trace
from .layout import Box, Lane, View, steady_views, whole_run
from .units import busy, exact, ms, tick_step

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

LETTERS = {
    "schedule": "s", "prepare": "p", "fill": "f", "mask": "m", "launch": "l",
    "launch sample": "a", "verify": "v", "wait": "·", "postprocess": "t", "process": "x",
    "output": "o", "send": "n", "receive": "r", "advance step": "e",
    "forward": "F", "sample": "S", "copy": "C", "recv": "R", "transfer": "T", "upload": "U",
    "draft": "D",
}  # fmt: skip
OTHER = "?"


def letter(name: str) -> str:
    """The letter of a phase or op; one that later designs add has none of its own."""
    return LETTERS.get(name, OTHER)


def letters_of(names: list[str]) -> str:
    """What the letters of these names mean, with spaces that hold each entry together."""
    return "   ".join(f"{letter(name)}\N{NO-BREAK SPACE}{name}" for name in dict.fromkeys(names))


BUBBLE, WAIT = "╱", "╳"


def to_text(
    traces: Sequence[Trace], steps: int = 3, whole: bool = False, columns: int = 100
) -> str:
    """A few settled steps of each run, or the whole runs, ``columns`` characters wide.

    A character shows what took the most of its time; it is blank only where nothing ran at all.

    Raises:
        ValueError: there is no trace, or less than 60 columns.
    """
    if not traces or columns < 60:
        raise ValueError(
            f"a picture needs at least 1 trace and 60 columns, but got {len(traces)} and {columns}."
        )
    views = [whole_run(t) for t in traces] if whole else steady_views(list(traces), steps)
    return views_to_text(views, columns)


def views_to_text(views: Sequence[View], columns: int = 100) -> str:
    """What was chosen of each run; the first run is the baseline."""
    longest = max(1, *(view.duration for view in views))
    margin = margin_of(views)
    cells = columns - margin
    lines: list[str] = []
    for view in views:
        lines += [_heading(view, views[0].trace)]
        lines += [f"{lane.title:>{margin - 2}} │{row(view, lane, longest, cells)}".rstrip()
                  for lane in view.lanes]  # fmt: skip
        lines += [*wrong_tokens(view, columns), ""]
    lines += draw_axis(longest, cells, margin)
    legend = _legend(views, "".join(lines), columns)
    return "\n".join([*lines, "", *legend, ""]).replace("\N{NO-BREAK SPACE}", " ")


def wrong_tokens(view: View, columns: int) -> list[str]:
    """A line for each slice that took a wrong token, and where that came from."""
    lines = []
    for item in view.wrong_tokens:
        sources = [one.src.label for one in view.arrows if one.wrong and one.dst is item.box]
        came_from = f", from {', '.join(sources)}" if sources else ""
        lines += wrap(f"wrong token for {item.box.label}: {item.words}{came_from}", columns)
    return lines


def _legend(views: Sequence[View], drawn: str, columns: int) -> list[str]:
    """What letters and hatching mean, as far as they occur."""
    boxes = [box for view in views for box in view.boxes]
    entries = [letters_of([box.slice.name for box in boxes if box.slice.duration])]
    reasons = dict.fromkeys(bubble.reason for view in views for bubble in view.bubbles)
    if BUBBLE in drawn:
        entries.append(f"{BUBBLE}\N{NO-BREAK SPACE}bubble:\N{NO-BREAK SPACE}the device idles")
    entries += [f"{WAIT}\N{NO-BREAK SPACE}waits for {why}" for why in reasons if why]
    if any(character.isdigit() for character in drawn):
        entries.append("numbers: steps")
    return wrap("   ".join(filter(None, entries)), columns)


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


def _heading(view: View, base: Trace) -> str:
    """Which steps, and of the whole run how long it took and how busy the device was."""
    report = measure(view.trace)
    steps = f"steps {view.first_step} to {view.last_step}: {ms(view.duration)} ms"
    whole = f"whole run: {ms(report.makespan_ns)} ms, {busy(report)}"
    if view.trace is not base and report.makespan_ns:
        whole += f", speed-up {base.end / report.makespan_ns:.2f}×"
    return f"{report.loop}: {steps}; {whole}"
