"""Previous-sampled scatter, step by step: which row goes on where, and by which path."""

from __future__ import annotations

from dataclasses import dataclass

from ...checks.overlap import forwards
from ...trace import Trace
from .marks import NothingToShow, lacking, named, number, short, short_end, word
from .page import EDGE, LEFT, Page, about_run, line, rect
from .page import svg_text as label
from .steps import opening, write_rows
from .text_page import TextPage

# -- Where each step took its input from, row by row, read from a trace ----------------------------


@dataclass(frozen=True)
class StepInput:
    """One step's input: its requests, its path, and which row of the step before each goes on."""

    step: int
    rids: tuple[str, ...]
    path: str  # full, slice or scatter
    new: int  # tokens that came from the CPU
    sources: dict[str, int]  # request -> its row in the step before


def inputs_of(trace: Trace) -> list[StepInput]:
    """Every step that ran, in order.

    Raises:
        NothingToShow: a mark names more rows than its step has.
    """
    rids = {item.step: item.rids for item in forwards(trace)}
    found: list[StepInput] = []
    for mark in named(trace, "prev sampled"):
        step = number(mark, "step")
        if step not in rids:
            continue  # it never ran, or is cut off
        before = rids.get(step - 1, ())
        places = [int(part) for part in word(mark, "sources").split() if part.isdecimal()]
        if any(place >= len(before) for place in places):
            raise lacking(mark, "rows that the step before has")
        sources = {before[place]: place for place in places}
        found.append(StepInput(step, rids[step], word(mark, "path"), number(mark, "new"), sources))
    return found


MOST_STEPS, ROW, BOX = 14, 26, 18  # columns, and pixels from row to row, and of a row
TITLE = "prev_sampled: where each step takes its input from"
NAMES = {
    "prompt": "ids from the CPU: a prompt, or a token that the host has learnt",
    "decode": "-1 on the CPU: the token is in prev_sampled_token_ids",
}
PATHS = {"full": "full H2D", "slice": "slice copy", "scatter": "scatter_"}


def view(trace: Trace) -> str:
    """One column a step, one box a row of its batch.

    Raises:
        NothingToShow: no step ran, or the relay was another one.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps = need_steps(part)
    page = Page(TITLE, about_run(trace, shown))
    note = "a column is a step, with its path; a line: the row that the token was sampled in"
    page.heading("Rows of input_ids", note)
    width = (EDGE - LEFT) / len(steps)
    top = page.top + 34
    for at, item in enumerate(steps):
        _draw_step(page, item, LEFT + at * width, top, width)
    rows = max(len(item.rids) for item in steps)
    for row in range(rows):
        page.add(label(LEFT - 8, top + row * ROW + 13, str(row), "small", "end"))
    page.add(label(20, top + 13, "row", "small"), label(20, top - 22, "step", "small"))
    page.top = top + rows * ROW
    page.legend(NAMES)
    page.notes(summary(steps))
    return page.finish()


def text(trace: Trace) -> str:
    """A table for a terminal: a column a step, a line for each row of its batch.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    steps = need_steps(part)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Rows of input_ids", "a<2: the token of a was sampled in row 2 of the step before")
    write_rows(page, ["step", "path", "from the CPU"], [column_of(item) for item in steps])
    page.write("", "from the CPU: tokens whose ids came from there; the others are -1 there and "
               "lie in prev_sampled_token_ids", "", summary(steps))  # fmt: skip
    return page.finish()


def column_of(item: StepInput) -> list[str]:
    """A step's number, its path, how many ids came from the CPU, and what each row is."""
    cells = (
        f"{short_end(rid, 8)}{f'<{item.sources[rid]}' if rid in item.sources else ''}"
        for rid in item.rids
    )
    return [str(item.step), item.path, str(item.new), *cells]


def need_steps(trace: Trace) -> list[StepInput]:
    """Where each step's input came from.

    Raises:
        NothingToShow: there is none.
    """
    if not (steps := inputs_of(trace)):
        raise NothingToShow("the trace has no prev sampled mark: another relay was used.")
    return steps


def summary(steps: list[StepInput]) -> str:
    """How many steps took each path; the same in every form."""
    counts = {name: sum(item.path == path for item in steps) for path, name in PATHS.items()}
    return "; ".join(f"{name}: {count} steps" for name, count in counts.items())


def _draw_step(page: Page, item: StepInput, left: float, top: float, width: float) -> None:
    """A column, with a line from each row that goes on to its place in the column before."""
    box, middle = 0.62 * width, left + 0.31 * width
    page.add(label(middle, top - 22, str(item.step), "small", "middle", step=item.step))
    page.add(label(middle, top - 8, PATHS.get(item.path, item.path), "small faint", "middle"))
    for row, rid in enumerate(item.rids):
        y = top + row * ROW
        source = item.sources.get(rid)
        kind = "prompt" if source is None else "decode"
        if source is not None:
            start = top + source * ROW + BOX / 2
            page.add(line("link", left - 0.38 * width, start, left, y + BOX / 2, rid=rid))
        about = f"step {item.step}, row {row}, {rid}: {NAMES[kind]}"
        page.add(rect(kind, left, y, box, BOX, about, step=item.step, rid=rid))
        page.add(label(middle, y + 13, short(rid, 5), f"small in-{kind}", "middle"))
