"""The token pool as a table, rows by positions: who wrote each cell, and who gathered it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Trace
from ..scene import CellGrid, GridCell, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, first_of, lacking, named, number, numbers, short, word
from .steps import opening

MOST_STEPS, MOST_TENANCIES, MOST_POSITIONS = 24, 10, 40
COLUMNS = ("rows", "uploads", "starts", "ends", "writes")  # ``TokenPool.record`` says what they are
LEGEND = {
    "upload": "upload: prompt tokens, copied on the scheduler's stream",
    "sample": "sample: one token a row, written on the engine's stream",
    "stale": "copied, but its KV is cached: never gathered",
    "wasted": "the sample of a wasted row",
    "lacking": "the same, in the prompt of the row's next owner",
}


@dataclass(frozen=True)
class TokenCell:
    """One token in the pool; ``look`` is one of ``LEGEND``."""

    look: str
    step: int  # that wrote it
    written: int  # when that took effect
    gathered_by: int = 0  # the step that read it; 0: none


@dataclass
class Tenancy:
    """One request's time in a row of the pool; ``cells`` by position."""

    row: int
    rid: str
    cells: dict[int, TokenCell] = field(default_factory=dict)


def scene(trace: Trace) -> Scene:
    """What each step wrote into the pool, and what it gathered from there.

    Raises:
        NothingToShow: no step ran, or no token pool was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (tenancies := tenancies_of(part)):
        raise NothingToShow("the trace has no token pool mark: no token pool was used.")
    looks = Counter(cell.look for tenancy in tenancies for cell in tenancy.cells.values())
    late, positions = looks["lacking"], 1 + max(max(tenancy.cells) for tenancy in tenancies)
    when = f"{late} of them over the next owner's prompt" if late else "none late"
    cut = first_of(MOST_POSITIONS, positions, "position"), first_of(MOST_TENANCIES, len(tenancies),
                                                                    "owner")  # fmt: skip
    cells = {
        (at, position): cell_of(tenancy, position, cell)
        for at, tenancy in enumerate(tenancies[:MOST_TENANCIES])
        for position, cell in tenancy.cells.items()
        if position < MOST_POSITIONS
    }
    rows = [f"row {tenancy.row}: {short(tenancy.rid, 8)}" for tenancy in tenancies[:MOST_TENANCIES]]
    grid = CellGrid(rows, [*map(str, range(min(positions, MOST_POSITIONS)))], cells)
    note = "in a cell: the step that wrote it; below it: the step that gathered it"
    sampled = many(looks["sample"] + looks["wasted"] + late, "token")
    return Scene(
        f"token_pool: {sampled} sampled into rows, {when}",
        about_run(trace, shown, *cut),
        [Part("Token pool, row by position", note, [grid])],
        LEGEND,
    )


def tenancies_of(trace: Trace) -> list[Tenancy]:
    """Every tenancy of the steps that ran, by row, in order of time.

    A step writes its prompt, gathers, and then writes what it samples. A wasted row may write after
    the next owner's prompt had got there; ``memory/pool.py`` says when that happens.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    ran = {item.step: item for item in forwards(trace)}
    ends = {(item.name, item.step): item.end for item in trace.slices}
    wasted = {(number(m, "step"), word(m, "rid")) for m in named(trace, "wasted row")}
    current, found = dict[int, Tenancy](), list[Tenancy]()
    for mark in named(trace, "token pool"):
        if (step := number(mark, "step")) not in ran:
            continue
        uploaded, sampled = (ends.get((op, step), mark.time) for op in ("upload", "sample"))
        columns = [numbers(mark, name, least=-1) for name in COLUMNS]
        if any(len(column) != len(ran[step].rids) for column in columns):
            raise lacking(mark, "a number for each request of its step")
        for rid, row, upload, start, end, write in zip(ran[step].rids, *columns, strict=True):
            before = current.get(row)
            if upload == 0:
                current[row] = Tenancy(row, rid)
                found.append(current[row])
            if row not in current or current[row].rid != rid:
                raise lacking(mark, f"an upload for {rid}, which has just got row {row}")
            cells = current[row].cells
            for at in range(upload, end) if upload >= 0 else ():
                cells[at] = TokenCell("upload" if at >= start else "stale", step, uploaded)
                late = before.cells.get(at) if upload == 0 and before else None
                if late and late.written > uploaded:
                    cells[at] = TokenCell("lacking", late.step, late.written)
            for at in range(start, end):
                if at not in cells:
                    raise lacking(mark, f"a token of {rid} at position {at}")
                cells[at] = replace(cells[at], gathered_by=step)
            if write >= 0:
                look = "wasted" if (step, rid) in wasted else "sample"
                cells[write] = TokenCell(look, step, sampled)
    return sorted(found, key=lambda tenancy: tenancy.row)


def cell_of(tenancy: Tenancy, position: int, cell: TokenCell) -> GridCell:
    """The step that wrote a token, and below it the one that gathered it."""
    about = (f"row {tenancy.row}, position {position}, {tenancy.rid}: {LEGEND[cell.look]}; "
             f"by step {cell.step} at {ms(cell.written)} ms")  # fmt: skip
    data: dict[str, str | int] = {"slot": tenancy.row, "position": position, "rid": tenancy.rid,
                                  "step": cell.step}  # fmt: skip
    if cell.gathered_by:
        data["gathered"] = cell.gathered_by
    return GridCell(cell.look, str(cell.step), str(cell.gathered_by or ""), about, data=data)
