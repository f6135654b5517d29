"""The token pool as a table, rows by positions: who wrote each cell, and who gathered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...checks.overlap import forwards
from ...trace import Mark, Slice, Trace
from ...trace.events import is_forward
from ..scene import CellGrid, GridCell, LaneItem, LaneRow, Lanes, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, lacking, many, named, number, short, word
from .steps import opening

# -- Who wrote which cell of the token pool, and who gathered it, read from a trace ----------------

COLUMNS = ("rows", "uploads", "starts", "ends", "writes")


@dataclass
class TokenCell:
    """One token in the pool. ``kind`` is prompt, cached, decode, wasted or late."""

    kind: str
    step: int  # that wrote it
    written: int  # when that took effect
    gathered_by: int = 0  # the step that read it; 0: none
    gathered: int = 0  # when


@dataclass
class Tenancy:
    """One request's time in a row of the pool."""

    row: int
    rid: str
    cells: dict[int, TokenCell] = field(default_factory=dict)  # by position


class PoolPart(NamedTuple):
    """What one step does for one request; see ``relay/token_pool.py:TokenPool.record``."""

    rid: str
    row: int
    upload: int
    start: int
    end: int
    write: int


@dataclass
class Times:
    """When the ops of each step took effect."""

    uploads: dict[int, int]
    forwards: dict[int, int]
    samples: dict[int, int]

    @classmethod
    def of(cls, trace: Trace) -> Times:
        """Read from the slices."""
        ends: dict[str, dict[int, int]] = {"upload": {}, "sample": {}}
        for item in trace.slices:
            if item.name in ends:
                ends[item.name][item.step] = item.end
        starts = {item.step: item.start for item in forwards(trace)}
        return cls(ends["upload"], starts, ends["sample"])


def tenancies_of(trace: Trace) -> list[Tenancy]:
    """Every tenancy of the steps that ran, by row, in order of time.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    times = Times.of(trace)
    rids = {item.step: item.rids for item in trace.slices if is_forward(item.lane)}
    wasted = {(number(m, "step"), word(m, "rid")) for m in named(trace, "wasted row")}
    current: dict[int, Tenancy] = {}
    found: list[Tenancy] = []
    for mark in named(trace, "token pool"):
        step = number(mark, "step")
        for part in parts_of(mark, rids.get(step, ())) if step in times.forwards else ():
            if part.upload == 0:
                current[part.row] = Tenancy(part.row, part.rid)
                found.append(current[part.row])
            if part.row not in current or current[part.row].rid != part.rid:
                raise lacking(mark, f"an upload for {part.rid}, which has just got row {part.row}")
            fill(current[part.row].cells, part, mark, times, (step, part.rid) in wasted)
    note_late_writes(found)
    return sorted(found, key=lambda tenancy: tenancy.row)


def note_late_writes(tenancies: Iterable[Tenancy]) -> None:
    """Where a wasted row wrote to its row after the next owner's prompt had got there.

    ``memory/pool.py`` says when that happens. ``tenancies`` are in order of time.
    """
    before: dict[int, Tenancy] = {}
    for tenancy in tenancies:
        last = before.get(tenancy.row, tenancy)
        before[tenancy.row] = tenancy
        for position, late in last.cells.items():
            cell = tenancy.cells.get(position)
            if cell and cell.written < late.written:
                reader = cell.gathered_by, cell.gathered
                tenancy.cells[position] = TokenCell("late", late.step, late.written, *reader)


def fill(
    cells: dict[int, TokenCell], part: PoolPart, mark: Mark, times: Times, is_wasted: bool
) -> None:
    """Let one step write and gather a request's cells: first the prompt, then what it samples."""
    step = number(mark, "step")
    for position in range(part.upload, part.end) if part.upload >= 0 else ():
        kind = "prompt" if position >= part.start else "cached"
        cells[position] = TokenCell(kind, step, times.uploads.get(step, mark.time))
    for position in range(part.start, part.end):
        if position not in cells:
            raise lacking(mark, f"a token of {part.rid} at position {position}, which it gathers")
        cells[position].gathered_by, cells[position].gathered = step, times.forwards[step]
    if part.write >= 0:
        kind = "wasted" if is_wasted else "decode"
        cells[part.write] = TokenCell(kind, step, times.samples.get(step, mark.time))


def parts_of(mark: Mark, rids: Iterable[str]) -> list[PoolPart]:
    """A mark's columns, request by request.

    Raises:
        NothingToShow: they are not whole numbers, one for each request.
    """
    columns = [whole_numbers(mark, name) for name in COLUMNS]
    rids = list(rids)
    if any(len(column) != len(rids) for column in columns):
        raise lacking(mark, "a number for each request of its step")
    return [PoolPart(*values) for values in zip(rids, *columns, strict=True)]


def whole_numbers(mark: Mark, name: str) -> list[int]:
    """The numbers in a text, -1 among them.

    Raises:
        NothingToShow: it holds something else.
    """
    parts = word(mark, name).split()
    if not all(part == "-1" or part.isdecimal() for part in parts):
        raise lacking(mark, f"{name} as whole numbers")
    return [int(part) for part in parts]


# -- The token pool's table, under the streams that write and gather its cells ---------------------

MOST_STEPS, MOST_TENANCIES, MOST_POSITIONS = 24, 10, 40
LEGEND = {
    "upload": "upload: prompt tokens, copied on the scheduler's stream",
    "forward": "forward: gathers its inputs, then computes",
    "sample": "sample: one token a row, written on the engine's stream",
    "stale": "copied, but its KV is cached: never gathered",
    "wasted": "the sample of a wasted row",
    "lacking": "the same, in the prompt of the row's next owner",
}
LOOK_OF = {
    "prompt": "upload", "cached": "stale", "decode": "sample", "wasted": "wasted", "late": "lacking"
}  # fmt: skip


def scene(trace: Trace) -> Scene:
    """The steps on a time axis, and what each of them did to the pool.

    Raises:
        NothingToShow: no step ran, or no token pool was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (tenancies := tenancies_of(part)):
        raise NothingToShow("the trace has no token pool mark: no token pool was used.")
    rows = [
        LaneRow(short(lane, 14), [
            LaneItem(item.name, item.start, item.end,
                     str(item.step) if item.name != "sample" else "",
                     about=f"step {item.step}, {item.name}: {ms(item.start)} to {ms(item.end)} ms",
                     data={"step": item.step, "op": item.name})
            for item in ops_of(part) if item.lane == lane
        ])
        for lane in lanes_of(part)
    ]  # fmt: skip
    kinds = Counter(cell.kind for tenancy in tenancies for cell in tenancy.cells.values())
    gathered = sum(cell.gathered_by > 0 for t in tenancies for cell in t.cells.values())
    uploaded = kinds["prompt"] + kinds["cached"]
    columns = 1 + max(max(tenancy.cells) for tenancy in tenancies)
    notes = [f"{many(uploaded, 'token')} uploaded, {kinds['decode']} sampled, {kinds['wasted']} "
             f"sampled by wasted rows, {kinds['late']} too late; {gathered} gathered"]  # fmt: skip
    if columns > MOST_POSITIONS:
        notes.append(f"{columns - MOST_POSITIONS} further positions are left out.")
    if len(tenancies) > MOST_TENANCIES:
        notes.append(f"{len(tenancies) - MOST_TENANCIES} later owners of rows are left out.")
    note = "in a cell: the step that wrote it; below it: the step that gathered it"
    late = f"{kinds['late']} of them over the next owner's prompt" if kinds["late"] else "none late"
    sampled = kinds["decode"] + kinds["wasted"] + kinds["late"]
    return Scene(
        f"token_pool: {many(sampled, 'token')} sampled into rows, {late}",
        about_run(trace, shown),
        [
            Part("Streams", "numbers: steps", [Lanes(rows, part.end)]),
            Part("Token pool, row by position", note,
                 [grid_of(tenancies[:MOST_TENANCIES], min(columns, MOST_POSITIONS))]),
        ],
        LEGEND,
        notes,
    )  # fmt: skip


def ops_of(trace: Trace) -> list[Slice]:
    """What writes and gathers cells."""
    return [item for item in trace.slices if item.name in ("upload", "forward", "sample")]


def lanes_of(trace: Trace) -> list[str]:
    """Where that runs, the engine's stream last."""
    return sorted({item.lane for item in ops_of(trace)}, key=lambda lane: (is_forward(lane), lane))


def grid_of(tenancies: list[Tenancy], columns: int) -> CellGrid:
    """A line of cells for each request that had a row, under the numbers of the positions."""
    cells: dict[tuple[int, int], GridCell] = {}
    for at, tenancy in enumerate(tenancies):
        for position, cell in tenancy.cells.items():
            if position >= columns:
                continue
            look = LOOK_OF[cell.kind]
            about = (f"row {tenancy.row}, position {position}, {tenancy.rid}: {LEGEND[look]}; by "
                     f"step {cell.step} at {ms(cell.written)} ms")  # fmt: skip
            data: dict[str, str | int] = {"slot": tenancy.row, "position": position,
                                          "rid": tenancy.rid, "step": cell.step}  # fmt: skip
            if cell.gathered_by:
                about += f"; gathered by step {cell.gathered_by} at {ms(cell.gathered)} ms"
                data["gathered"] = cell.gathered_by
            cells[at, position] = GridCell(look, str(cell.step), str(cell.gathered_by or ""), about,
                                       data=data)  # fmt: skip
    names = [f"row {tenancy.row}: {short(tenancy.rid, 8)}" for tenancy in tenancies]
    return CellGrid(names, [str(position) for position in range(columns)], cells)
