"""Tokens that stay on the device, as rows: placeholder fill, and vLLM's previous-sampled scatter.

In both a step's rows take their input from rows of the step before: a column a step, a box a row,
and a line to where each token was sampled.
"""

from __future__ import annotations

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Mark, Trace
from ..scene import CellGrid, GridCell, LaneLink, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, first_of, lacking, named, number, numbers, short_end, word
from .steps import opening, steps_of

MOST_STEPS, MOST_ROWS = 14, 12
KNOWN = -1  # no row: the host knows the token
LEGEND = {
    "prompt": "a prompt: never filled",
    "again": "a prompt, computed again: never filled",
    "stored": "decodes a token that the host knows",
    "decode": "decodes a token of the step before: filled from the row it is joined to",
    "wasted": "filled, but its request had ended: the surplus row",
    "arrow token": "the row that it is filled from",
}
SCATTERED = {
    "prompt": "ids from the CPU: a prompt, or a token that the host has learnt",
    "decode": "-1 on the CPU: the token is in prev_sampled_token_ids",
    "arrow token": "from the row that the token was sampled in",
}
PATHS = {"full": "full H2D", "slice": "slice copy", "scatter": "scatter_"}
Row = tuple[str, str, int]  # request, look, and a row of the step before, or KNOWN


def scene(trace: Trace) -> Scene:
    """Placeholder fill: from which row of the step before a token came.

    Raises:
        NothingToShow: no step ran, or no placeholder fill was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    marks = {number(mark, "step"): mark for mark in named(part, "placeholder fill")}
    columns, steps, before = list[str](), list[tuple[int, list[Row]]](), 0
    for work in steps_of(part):
        if work.step in marks:
            sources = rows_of(marks[work.step], "rows", before)
            if len(sources) != len(work.parts):
                raise lacking(marks[work.step], "a row for each row of its step")
            looks = [("stored" if source == KNOWN else "decode") if of.kind == "decode" else of.kind
                     for of, source in zip(work.parts, sources, strict=True)]  # fmt: skip
            rids, before = [of.rid for of in work.parts], len(work.parts)
            steps.append((work.step, list(zip(rids, looks, sources, strict=True))))
            columns.append(f"{work.step}\n{ms(work.start)}")
    if not steps:
        raise NothingToShow("the trace has no placeholder fill mark: no placeholder was filled.")
    every = [row for _, rows in steps for row in rows]
    filled, wasted = sum(row[2] != KNOWN for row in every), sum(row[1] == "wasted" for row in every)
    title = (f"placeholder_fill: {filled} of {len(every)} rows filled from the step before, "
             f"{wasted} surplus")  # fmt: skip
    note = "a column is a step, with its start in ms; a<2: filled from row 2 of the step before"
    part_ = Part("Rows of each step", note, [grid_of(steps, columns, LEGEND)])
    most = max(len(rows) for _, rows in steps)
    return Scene(title, about_run(trace, shown, first_of(MOST_ROWS, most, "row")), [part_], LEGEND)


def prev_sampled(trace: Trace) -> Scene:
    """vLLM's scatter: which row goes on where, and by which path.

    Raises:
        NothingToShow: no step ran, or the relay was another one.
    """
    part, shown = opening(trace, MOST_STEPS)
    ran = {item.step: item.rids for item in forwards(part)}
    columns, steps, new, paths = list[str](), list[tuple[int, list[Row]]](), 0, list[str]()
    for mark in named(part, "prev sampled"):
        if (step := number(mark, "step")) in ran:
            before = ran.get(step - 1, ())
            kept = {before[at]: at for at in rows_of(mark, "sources", len(before)) if at != KNOWN}
            steps.append((step, [(rid, "decode" if rid in kept else "prompt", kept.get(rid, KNOWN))
                                 for rid in ran[step]]))  # fmt: skip
            new += number(mark, "new")
            paths.append(PATHS.get(word(mark, "path"), word(mark, "path")))
            columns.append(f"{step}\n{paths[-1]}")
    if not steps:
        raise NothingToShow("the trace has no prev sampled mark: another relay was used.")
    stay = sum(source != KNOWN for _, rows in steps for _, _, source in rows)
    note = "a column is a step, with its path; a<2: sampled in row 2 of the step before"
    return Scene(
        f"prev_sampled: {many(stay, 'token')} stay on the device, {new} ids come from the CPU",
        about_run(trace, shown),
        [Part("Rows of input_ids", note, [grid_of(steps, columns, SCATTERED)])],
        SCATTERED,
        ["; ".join(f"{path}: {many(paths.count(path), 'step')}" for path in PATHS.values())],
    )


def rows_of(mark: Mark, name: str, before: int) -> list[int]:
    """The rows of the step before that a mark names, or KNOWN.

    Raises:
        NothingToShow: the step before has no such row.
    """
    if max(rows := numbers(mark, name, least=KNOWN), default=KNOWN) >= before:
        raise lacking(mark, "rows that the step before has")
    return rows


def grid_of(
    steps: list[tuple[int, list[Row]]], columns: list[str], legend: dict[str, str]
) -> CellGrid:
    """A column a step; of many rows the first."""
    cells, links = dict[tuple[int, int], GridCell](), list[LaneLink]()
    for at, (step, rows) in enumerate(steps):
        for row, (rid, look, source) in enumerate(rows[:MOST_ROWS]):
            about = f"step {step}, row {row}, {rid}: {legend[look]}"
            where = {"step": step, "row": row, "source": source}
            if source != KNOWN and at:
                about += f"; row {source} of the step before"
                link = (min(source, MOST_ROWS - 1), at - 1), (row, at)
                links.append(LaneLink("token", *link, data=where))
            words = short_end(rid, 8) + f"<{source}" * (source != KNOWN)
            cells[row, at] = GridCell(look, words, about=about, data={**where, "rid": rid})
    most = min(MOST_ROWS, max(len(rows) for _, rows in steps))
    return CellGrid([f"row {row}" for row in range(most)], columns, cells, links)
