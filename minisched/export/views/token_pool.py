"""The token pool as a table, rows by positions: the writer and the reader of each cell."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ...checks.history import many
from ...checks.overlap import forwards
from ...trace import Trace
from ..scene import CellGrid, GridCell, Part, Scene, about_run
from .marks import first_of, lacking, named, needed, number, numbers, short, word
from .steps import opening

MOST_STEPS, MOST_TENANCIES, MOST_POSITIONS = 24, 10, 40
COLUMNS = ("rows", "uploads", "starts", "ends", "writes")  # ``TokenPool.record`` defines them
LEGEND = {
    "upload": "prompt tokens, uploaded by the host",
    "sample": "a sampled token, gathered by its request's next step",
    "unread": "a sampled token that no step gathers",
    "stale": "copied, but its KV is cached: never gathered",
    "wasted": "the sample of a wasted row",
    "lacking": "the same, in the prompt of the row's next owner",
}


@dataclass(frozen=True)
class TokenCell:
    """One token in the pool; ``look`` is one of ``LEGEND``."""

    look: str
    step: int  # the step that wrote it
    written: int  # time when the write took effect
    gathered_by: int = 0  # the step that read it; 0: none


@dataclass
class Tenancy:
    """One request's time in a row of the pool; ``cells`` by position."""

    row: int
    rid: str
    cells: dict[int, TokenCell] = field(default_factory=dict)


def scene(trace: Trace) -> Scene:
    """Draw the tokens that each step wrote into the pool, and those that it gathered."""
    part, shown = opening(trace, MOST_STEPS)
    tenancies = tenancies_of(part)
    every = [cell for tenancy in tenancies for cell in tenancy.cells.values()]
    looks = Counter(cell.look for cell in every)
    positions = 1 + max(max(tenancy.cells) for tenancy in tenancies)
    cells = dict[tuple[int, int], GridCell]()
    for at, tenancy in enumerate(tenancies[:MOST_TENANCIES]):
        for position, cell in tenancy.cells.items():
            if position < MOST_POSITIONS:
                data: dict[str, str | int] = {"slot": tenancy.row, "position": position,
                                              "rid": tenancy.rid, "step": cell.step}  # fmt: skip
                data |= {"gathered": cell.gathered_by} if cell.gathered_by else {}
                cell_of = f"row {tenancy.row}, position {position}, rid {tenancy.rid}"
                reader = f"by step {cell.gathered_by}" if cell.gathered_by else "never"
                about = f"{cell_of}: written by step {cell.step}, gathered {reader}"
                is_unread = cell.look == "sample" and not cell.gathered_by
                look, writer = "unread" if is_unread else cell.look, str(cell.step)
                cells[at, position] = GridCell(look, writer, "", about, data=data)
    rows = [f"row {one.row}: {short(one.rid, 8)}" for one in tenancies[:MOST_TENANCIES]]
    columns = [*map(str, range(min(positions, MOST_POSITIONS)))]
    note = "in a cell: the step that wrote it; a line for each owner of a row"
    late, count = looks["lacking"], looks["sample"] + looks["wasted"] + looks["lacking"]
    on_device = sum(cell.look == "sample" and cell.gathered_by > 0 for cell in every)
    when = f"; {late} came late, over the next owner's prompt" if late else ""
    return Scene(
        f"The next step gathers {on_device} of {many(count, 'sampled token')} "
        f"without the host, and {count - on_device} stay unread{when}",
        about_run(trace, shown, first_of(MOST_POSITIONS, positions, "position"),
                  first_of(MOST_TENANCIES, len(tenancies), "owner")),
        [Part("Token pool, row by position", note, [CellGrid(rows, columns, cells)])],
        LEGEND,
    )  # fmt: skip


def tenancies_of(trace: Trace) -> list[Tenancy]:
    """Return every tenancy of the steps that ran, by row, by time.

    A step writes its prompt, gathers, and then writes the tokens that it samples. A wasted row may
    write after the next owner's prompt arrived; see ``memory/free_rules.py``.
    """
    ran = {item.step: item for item in forwards(trace)}
    ends = {(item.name, item.step): item.end for item in trace.slices}
    wasted = {(number(m, "step"), word(m, "rid")) for m in named(trace, "wasted row")}
    current, found = dict[int, Tenancy](), list[Tenancy]()
    for mark in needed(trace, "token pool", "no token pool was used", ran):
        step = number(mark, "step")
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
