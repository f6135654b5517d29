"""Tokens that stay on the device, as rows: placeholder fill, and vLLM's previous-sampled scatter.

In both a step's rows take their input from rows of the previous step. A picture has a column for
each step, a box for each row, and a line to the row that sampled its token.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Mark, Trace
from ...trace.sides import shown_side, side_words
from ..scene import CellGrid, GridCell, LaneLink, Part, Scene, about_run
from .marks import first_of, lacking, needed, number, numbers, short_end, word
from .steps import opening, steps_of

MOST_STEPS, MOST_ROWS = 14, 12
KNOWN = -1  # no row: the host knows the token
LEGEND = {
    "prompt": "a prompt",
    "again": "a prompt, computed again",
    "stored": "a token that the host knows",
    "decode": "a token of the step before",
    "wasted": "a wasted row: its request had ended",
}
SCATTERED = {
    "prompt": "ids from the CPU: a prompt, or a token that the host has learnt",
    "decode": "-1 on the CPU: the token is in prev_sampled_token_ids",
    "arrow token": "from another row",
}
PATHS = {"full": "full H2D", "slice": "slice copy", "scatter": "scatter_"}
WORDS = {
    "full H2D": "the CPU sends every token",
    "slice copy": "each row continues the row of the same number",
    "scatter_": "each token is written to the new row of its request",
}
Row = tuple[str, str, int]  # request, look, and a row of the previous step, or KNOWN


def scene(trace: Trace) -> Scene:
    """Draw placeholder fill: the row of the previous step that sampled each token."""
    part, shown = opening(trace, MOST_STEPS)
    ran = {work.step: work for work in steps_of(part)}
    marks = needed(part, "placeholder fill", "no placeholder was filled", ran)
    columns, steps, before = list[str](), dict[int, list[Row]](), 0
    for step, mark in sorted({number(mark, "step"): mark for mark in marks}.items()):
        shares, sources = ran[step].parts, rows_of(mark, "rows", before)
        if len(sources) != len(shares):
            raise lacking(mark, "a row for each row of its step")
        steps[step] = [
            (of.rid, "stored" if (of.kind, source) == ("decode", KNOWN) else of.kind, source)
            for of, source in zip(shares, sources, strict=True)
        ]
        before = len(shares)
        columns.append(f"step {step}")
    every = [row for rows in steps.values() for row in rows]
    filled = sum(row[2] != KNOWN for row in every)
    title = f"{filled} of {len(every)} rows take their token from a row of the step before"
    note = "a column is a step, in a box is the request; an arrow comes from the row with its token"
    cut = first_of(MOST_ROWS, max(map(len, steps.values())), "row")
    grid = Part("Rows of each step", note, [grid_of(steps, columns)])
    return Scene(title, about_run(trace, shown, cut), [grid], LEGEND)


def prev_sampled(trace: Trace) -> Scene:
    """Draw vLLM's scatter: the next row of each row, and the path of its token."""
    part, shown = opening(shown_side(trace), MOST_STEPS)
    ran = {item.step: item.rids for item in forwards(part)}
    marks = needed(part, "prev sampled", "another relay was used", ran)
    steps, paths = dict[int, list[Row]](), list[str]()
    for mark in marks:
        step = number(mark, "step")
        before = ran.get(step - 1, ())
        kept = {before[at]: at for at in rows_of(mark, "sources", len(before)) if at != KNOWN}
        steps[step] = [(rid, "decode" if rid in kept else "prompt", kept.get(rid, KNOWN))
                       for rid in ran[step]]  # fmt: skip
        paths.append(PATHS.get(word(mark, "path"), word(mark, "path")))
    columns = [f"{step}\n{path}" for step, path in zip(steps, paths, strict=True)]
    stay = sum(source != KNOWN for rows in steps.values() for _, _, source in rows)
    moved = sum(source not in (KNOWN, row) for rows in steps.values()
                for row, (_, _, source) in enumerate(rows))  # fmt: skip
    every = many(sum(map(len, steps.values())), "row")
    note = "a column is a step, with its path; in a box is the request"
    return Scene(
        f"{stay} of {every} take their token on the device, {moved} of them from another row",
        about_run(trace, shown, side_words(trace)),
        [Part("Rows of input_ids", note, [grid_of(steps, columns)])],
        SCATTERED,
        [f"{path} ({many(paths.count(path), 'step')}): {WORDS[path]}" for path in PATHS.values()],
    )


def rows_of(mark: Mark, name: str, before: int) -> list[int]:
    """Return the rows of the previous step that a mark names, or KNOWN."""
    if max(rows := numbers(mark, name, least=KNOWN), default=KNOWN) >= before:
        raise lacking(mark, "rows that the step before has")
    return rows


def grid_of(steps: dict[int, list[Row]], columns: Sequence[str]) -> CellGrid:
    """Return a column for each step; of many rows the first."""
    cells, links = dict[tuple[int, int], GridCell](), list[LaneLink]()
    for at, (step, rows) in enumerate(steps.items()):
        for row, (rid, look, source) in enumerate(rows[:MOST_ROWS]):
            data = {"step": step, "row": row, "source": source}
            if source != KNOWN and at:
                kind = "token" if source != row else "stay"
                ends = (min(source, MOST_ROWS - 1), at - 1), (row, at)
                links.append(LaneLink(kind, *ends, f"from row {source}", data))
            cells[row, at] = GridCell(look, short_end(rid, 8), data={**data, "rid": rid})
    most = min(MOST_ROWS, max(map(len, steps.values())))
    return CellGrid([f"row {row}" for row in range(most)], columns, cells, links)
