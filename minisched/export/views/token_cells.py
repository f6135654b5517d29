"""Who wrote which cell of the token pool, and who gathered it, read from a trace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...checks.overlap import forwards
from ...trace import Mark, Trace
from ...trace.events import is_forward
from .marks import lacking, named, number, word

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


class Part(NamedTuple):
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
    cells: dict[int, TokenCell], part: Part, mark: Mark, times: Times, is_wasted: bool
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


def parts_of(mark: Mark, rids: Iterable[str]) -> list[Part]:
    """A mark's columns, request by request.

    Raises:
        NothingToShow: they are not whole numbers, one for each request.
    """
    columns = [whole_numbers(mark, name) for name in COLUMNS]
    rids = list(rids)
    if any(len(column) != len(rids) for column in columns):
        raise lacking(mark, "a number for each request of its step")
    return [Part(*values) for values in zip(rids, *columns, strict=True)]


def whole_numbers(mark: Mark, name: str) -> list[int]:
    """The numbers in a text, -1 among them.

    Raises:
        NothingToShow: it holds something else.
    """
    parts = word(mark, name).split()
    if not all(part == "-1" or part.isdecimal() for part in parts):
        raise lacking(mark, f"{name} as whole numbers")
    return [int(part) for part in parts]
