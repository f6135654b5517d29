"""Previous-sampled scatter, step by step: which row goes on where, and by which path."""

from __future__ import annotations

from ...trace import Trace
from .marks import NothingToShow
from .page import EDGE, LEFT, Page, about_run
from .prev_rows import StepInput, inputs_of
from .shapes import line, rect, text
from .steps import opening
from .wording import short

MOST_STEPS, ROW, BOX = 14, 26, 18  # columns, and pixels from row to row, and of a row
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
    steps = inputs_of(part)
    if not steps:
        raise NothingToShow("the trace has no prev sampled mark: another relay was used.")
    page = Page("prev_sampled: where each step takes its input from", about_run(trace, shown))
    note = "a column is a step, with its path; a line: the row that the token was sampled in"
    page.heading("Rows of input_ids", note)
    width = (EDGE - LEFT) / len(steps)
    top = page.top + 34
    for at, item in enumerate(steps):
        _draw_step(page, item, LEFT + at * width, top, width)
    rows = max(len(item.rids) for item in steps)
    for row in range(rows):
        page.add(text(LEFT - 8, top + row * ROW + 13, str(row), "small", "end"))
    page.add(text(20, top + 13, "row", "small"), text(20, top - 22, "step", "small"))
    page.top = top + rows * ROW
    page.legend(NAMES)
    counts = {name: sum(item.path == path for item in steps) for path, name in PATHS.items()}
    page.notes("; ".join(f"{name}: {count} steps" for name, count in counts.items()))
    return page.finish()


def _draw_step(page: Page, item: StepInput, left: float, top: float, width: float) -> None:
    """A column, with a line from each row that goes on to its place in the column before."""
    box, middle = 0.62 * width, left + 0.31 * width
    page.add(text(middle, top - 22, str(item.step), "small", "middle", step=item.step))
    page.add(text(middle, top - 8, PATHS.get(item.path, item.path), "small faint", "middle"))
    for row, rid in enumerate(item.rids):
        y = top + row * ROW
        source = item.sources.get(rid)
        kind = "prompt" if source is None else "decode"
        if source is not None:
            start = top + source * ROW + BOX / 2
            page.add(line("link", left - 0.38 * width, start, left, y + BOX / 2, rid=rid))
        about = f"step {item.step}, row {row}, {rid}: {NAMES[kind]}"
        page.add(rect(kind, left, y, box, BOX, about, step=item.step, rid=rid))
        page.add(text(middle, y + 13, short(rid, 5), f"small in-{kind}", "middle"))
