"""Placeholder fill: each step's rows, and from which row of the step before a token came."""

from __future__ import annotations

from dataclasses import dataclass

from ...trace import Mark, Trace
from ..scene import CellGrid, GridCell, LaneLink, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, lacking, named, number, short_end, word
from .steps import opening, steps_of

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
LEGEND = {
    "prompt": "a prompt: never filled",
    "again": "a prompt, computed again: never filled",
    "stored": "decodes a token that the host knows",
    "decode": "decodes a token of the step before: filled from the row it is joined to",
    "wasted": "filled, but its request had ended: the surplus row",
    "arrow token": "the row that it is filled from",
}
LOOK_OF = {"known": "stored", "hit": "decode"}


def scene(trace: Trace) -> Scene:
    """A column a step.

    Raises:
        NothingToShow: no step ran, or no placeholder fill was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (steps := filled_steps(part)[:MOST_STEPS]):
        raise NothingToShow("the trace has no placeholder fill mark: no placeholder was filled.")
    cells, links = dict[tuple[int, int], GridCell](), list[LaneLink]()
    for at, step in enumerate(steps):
        rows = zip(step.rids, step.kinds, step.sources, strict=True)
        for row, (rid, kind, source) in list(enumerate(rows))[:MOST_ROWS]:
            look, where = LOOK_OF.get(kind, kind), {"step": step.step, "row": row}
            about = f"step {step.step}, row {row}, {rid}: {LEGEND[look]}"
            words = short_end(rid, 8)
            if source != KNOWN:
                about += f"; row {source} of the step before"
                words += f"<{source}"
                link = (min(source, MOST_ROWS - 1), at - 1), (row, at)
                links.append(LaneLink("token", *link, data={**where, "source": source}))
            cells[row, at] = GridCell(look, words, about=about,
                                  data={**where, "rid": rid, "source": source})  # fmt: skip
    most = max(len(step.rids) for step in steps)
    filled = sum(source != KNOWN for step in steps for source in step.sources)
    wasted = sum(kind == "wasted" for step in steps for kind in step.kinds)
    columns = [f"{step.step}\n{ms(step.start)}" for step in steps]
    names = [f"row {row}" for row in range(min(most, MOST_ROWS))]
    rows_in_all = sum(len(step.rids) for step in steps)
    note = "a column is a step, with its start in ms; a<2: filled from row 2 of the step before"
    hidden = [f"{most - MOST_ROWS} further rows are left out."] if most > MOST_ROWS else []
    return Scene(
        f"placeholder_fill: {filled} of {rows_in_all} rows filled from the step before, "
        f"{wasted} surplus",
        about_run(trace, shown),
        [Part("Rows of each step", note, [CellGrid(names, columns, cells, links)])],
        LEGEND,
        hidden,
    )
