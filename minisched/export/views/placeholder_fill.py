"""Placeholder fill: each step's rows, and from which row of the step before a token came."""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Mark, Trace
from ..svg import char_width
from ..units import ms
from .marks import NothingToShow, lacking, named, number, short_end, word
from .page import EDGE, LEFT, Page, about_run, band, line, rect
from .page import svg_text as label
from .steps import opening, steps_of, write_rows
from .text_page import TextPage

# -- Which rows of each step were filled from which rows of the step before, read from a trace -----

KNOWN = -1  # no row: the host knows the tokens


@dataclass(frozen=True)
class FilledStep:
    """One step: its rows, and where the token of each came from.

    ``kinds``: prompt or again, known (a decode whose token the host knows), hit, or wasted (a hit
    of a request that had ended).
    """

    step: int
    start: int  # nanoseconds: when its forward pass began
    rids: tuple[str, ...]
    kinds: tuple[str, ...]
    sources: tuple[int, ...]  # a row of the last step, or KNOWN


def filled_steps(trace: Trace) -> list[FilledStep]:
    """Every step that ran, from the ``placeholder fill`` marks; empty where there are none.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    marks = {number(mark, "step"): mark for mark in named(trace, "placeholder fill")}
    found: list[FilledStep] = []
    for work in steps_of(trace):
        if work.step not in marks:
            continue
        rids = tuple(part.rid for part in work.parts)
        before = len(found[-1].rids) if found else 0
        sources = rows_of(marks[work.step], len(rids), before)
        kinds = tuple(
            kind_of(part.kind, source) for part, source in zip(work.parts, sources, strict=True)
        )
        found.append(FilledStep(work.step, work.start, rids, kinds, sources))
    return found


def kind_of(kind: str, source: int) -> str:
    """What a row is to the fill."""
    return kind if kind != "decode" else "known" if source == KNOWN else "hit"


def rows_of(mark: Mark, num_rows: int, num_last: int) -> tuple[int, ...]:
    """The row that each row is filled from.

    Raises:
        NothingToShow: there are not as many as rows, or one is not a row of the last step.
    """
    words = word(mark, "rows").split()
    try:
        rows = tuple(map(int, words))
    except ValueError:
        rows = ()
    if len(rows) != num_rows or not all(KNOWN <= row < num_last for row in rows):
        raise lacking(mark, "for each row of its step the row that it is filled from")
    return rows


MOST_STEPS, MOST_ROWS = 16, 12
PITCH, BOX, SHARE = 24, 17, 0.6  # from row to row, how high a box is, its part of the column
TITLE = "placeholder_fill: the row that a token comes from"
NAMES = {
    "prompt": "a prompt: never filled",
    "again": "a prompt, computed again: never filled",
    "stored": "decodes a token that the host knows",
    "decode": "decodes a token of the step before: filled from the row it is joined to",
    "wasted": "filled, but its request had ended: the surplus row",
}
LOOK_OF = {"known": "stored", "hit": "decode"}
SIGN_OF = {"prompt": "▒", "again": "▓", "known": "=", "hit": "", "wasted": "╳"}  # before the name
SIGNS = (
    "▒a: a prompt   ▓a: a prompt, computed again   =a: a token that the host knows   "
    "╳a<0: filled, but its request had ended: the surplus row"
)


def view(trace: Trace) -> str:
    """A column a step.

    Raises:
        NothingToShow: no step ran, or no placeholder fill was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps = need_steps(part)
    page = Page(TITLE, about_run(trace, shown))
    page.heading("Rows of each step", "labels: requests, in the order of the batch")
    most = min(MOST_ROWS, max(len(step.rids) for step in steps))
    pitch = (EDGE - LEFT) / len(steps)
    top = page.top + 8
    for row in range(most):
        y = top + row * PITCH
        page.add(band(LEFT, y, EDGE - LEFT, BOX), label(20, y + 13, f"row {row}", "small"))
    for at, step in enumerate(steps):
        draw_step(page, step, LEFT + (at + (1 - SHARE) / 2) * pitch, top, pitch)
    page.top = top + most * PITCH + 8
    draw_axis(page, steps, pitch)
    page.legend(NAMES)
    page.notes(summary(steps))
    if hidden := max(len(step.rids) for step in steps) - most:
        page.notes(f"{hidden} further rows are left out.")
    return page.finish()


def text(trace: Trace) -> str:
    """A table for a terminal: a column a step, a line for each row of the batch.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps = need_steps(part)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Rows of each step", "a<2: the token of a comes from row 2 of the step before")
    write_rows(page, ["step", "start, ms"], [column_of(step) for step in steps])
    page.write("", SIGNS, "", summary(steps))
    return page.finish()


def column_of(step: FilledStep) -> list[str]:
    """A step's number, its start, and what each row is."""
    rows = zip(step.rids, step.kinds, step.sources, strict=True)
    cells = (
        f"{SIGN_OF[kind]}{short_end(rid, 8)}{f'<{source}' if source != KNOWN else ''}"
        for rid, kind, source in rows
    )
    return [str(step.step), ms(step.start), *cells]


def need_steps(trace: Trace) -> list[FilledStep]:
    """The steps to be shown.

    Raises:
        NothingToShow: there is none.
    """
    if not (steps := filled_steps(trace)[:MOST_STEPS]):
        raise NothingToShow("the trace has no placeholder fill mark: no placeholder was filled.")
    return steps


def summary(steps: list[FilledStep]) -> str:
    """How many rows were filled; the same in every form."""
    filled = sum(source != KNOWN for step in steps for source in step.sources)
    wasted = sum(kind == "wasted" for step in steps for kind in step.kinds)
    rows = sum(len(step.rids) for step in steps)
    return f"{filled} of {rows} rows filled from the step before, {wasted} surplus"


def draw_step(page: Page, step: FilledStep, x: float, top: float, pitch: float) -> None:
    """A step's rows, each with a line to the row that it was filled from."""
    width = SHARE * pitch
    rows = zip(step.rids, step.kinds, step.sources, strict=True)
    for row, (rid, kind, source) in list(enumerate(rows))[:MOST_ROWS]:
        y, look = top + row * PITCH, LOOK_OF.get(kind, kind)
        where = {"step": step.step, "row": row}
        about = f"step {step.step}, row {row}, {rid}: {NAMES[look]}"
        if source != KNOWN:
            about += f"; row {source} of the step before"
            middle = top + min(source, MOST_ROWS) * PITCH + BOX / 2
            left = x - (1 - SHARE) * pitch
            page.add(line("line", left, middle, x, y + BOX / 2, source=source, **where))
        page.add(rect(look, x, y, width, BOX, about, rid=rid, source=source, **where))
        most = int((width - 2) / char_width(11))
        if most >= 2:
            words = short_end(rid, most)
            page.add(label(x + width / 2, y + 13, words, f"small in-{look}", "middle"))


def draw_axis(page: Page, steps: list[FilledStep], pitch: float) -> None:
    """Under each column the step's number, and when its forward pass began."""
    y = page.top
    page.add(line("axis", LEFT, y, EDGE, y))
    page.add(label(20, y + 17, "step", "small"), label(20, y + 32, "start time, ms", "small"))
    for at, step in enumerate(steps):
        middle = LEFT + (at + 0.5) * pitch
        page.add(label(middle, y + 17, str(step.step), "small", "middle"))
        start = ms(step.start)
        if len(start) * char_width(11) <= pitch:
            page.add(label(middle, y + 32, start, "small faint", "middle"))
    page.top = y + 36
