"""The token pool as a table, rows by positions: who wrote each cell, and who gathered it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ...checks.overlap import forwards
from ...trace import Mark, Slice, Trace
from ...trace.events import is_forward
from ..palette import PAINTS
from ..state import Stay
from ..svg import char_width
from ..units import ms
from .axes import TimeAxis
from .marks import NothingToShow, lacking, named, number, short, word
from .page import EDGE, LEFT, Page, about_run, band, rect, svg_text
from .steps import opening, write_grid
from .text_page import TextPage

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


# -- The token pool's table as SVG, under the streams that write and gather its cells --------------

MOST_POSITIONS = 40
PITCH, BOX = 40, 17  # from row to row, and how high a cell is
NAMES = {
    "upload": "upload: prompt tokens, copied on the scheduler's stream",
    "forward": "forward: gathers its inputs, then computes",
    "sample": "sample: one token a row, written on the engine's stream",
    "stale": "copied, but its KV is cached: never gathered",
    "wasted": "the sample of a wasted row",
    "bubble": "the same, in the prompt of the row's next owner",
}
LOOK_OF = {
    "prompt": "upload", "cached": "stale", "decode": "sample", "wasted": "wasted", "late": "bubble"
}  # fmt: skip


def ops_of(trace: Trace) -> list[Slice]:
    """What writes and gathers cells."""
    return [item for item in trace.slices if item.name in ("upload", "forward", "sample")]


def lanes_of(trace: Trace) -> list[str]:
    """Where that runs, the engine's stream last."""
    return sorted({item.lane for item in ops_of(trace)}, key=lambda lane: (is_forward(lane), lane))


def num_positions(tenancies: list[Tenancy]) -> int:
    """How many columns the table has."""
    return 1 + max(max(tenancy.cells) for tenancy in tenancies)


def draw_streams(page: Page, trace: Trace) -> None:
    """When each step's ops ran: these are the moments at which cells are written and gathered."""
    x, top = TimeAxis(trace.end), page.top
    ops, lanes = ops_of(trace), lanes_of(trace)
    page.add(*x.grid(top, top + 26 * len(lanes)))
    for at, lane in enumerate(lanes):
        y = top + 26 * at + 3
        page.add(band(LEFT, y, EDGE - LEFT, 20), svg_text(20, y + 14, short(lane, 12)))
        for item in ops:
            if item.lane == lane:
                draw_op(page, item, x, y)
    page.add(*x.draw(top + 26 * len(lanes) + 2))
    page.top = top + 26 * len(lanes) + 26


def draw_op(page: Page, item: Slice, x: TimeAxis, y: float) -> None:
    """One op, with its step's number if there is room."""
    left, width = x.span(item.start, item.end)
    about = f"step {item.step}, {item.name}: {ms(item.start)} to {ms(item.end)} ms"
    page.add(rect(item.name, left, y + 1, width, 18, about, step=item.step, op=item.name))
    if item.name != "sample" and len(str(item.step)) * char_width(11) + 2 <= width:
        kind = f"small on-{item.name}"
        page.add(svg_text(left + width / 2, y + 14, str(item.step), kind, "middle"))


def draw_pool(page: Page, tenancies: list[Tenancy]) -> None:
    """A line of cells for each request that had a row, under the numbers of the positions."""
    columns = num_positions(tenancies)
    shown = min(columns, MOST_POSITIONS)
    width = (EDGE - LEFT) / shown
    page.add(svg_text(20, page.top + 12, "position", "small"))
    for position in range(shown):
        middle = LEFT + (position + 0.5) * width
        page.add(svg_text(middle, page.top + 12, str(position), "small faint", "middle"))
    page.top += 20
    for tenancy in tenancies:
        page.add(svg_text(20, page.top + 13, f"row {tenancy.row}: {short(tenancy.rid, 5)}"))
        for position, cell in sorted(tenancy.cells.items()):
            if position < shown:
                draw_cell(page, tenancy, position, cell, width)
        page.top += PITCH
    if shown < columns:
        page.notes(f"{columns - shown} further positions are left out.")


def draw_cell(page: Page, tenancy: Tenancy, position: int, cell: TokenCell, width: float) -> None:
    """One cell: its writer inside, its reader below."""
    left, y, look = LEFT + position * width, page.top, LOOK_OF[cell.kind]
    whose = f"row {tenancy.row}, position {position}, {tenancy.rid}"
    about = f"{whose}: {NAMES[look]}; by step {cell.step} at {ms(cell.written)} ms"
    where = {"row": tenancy.row, "position": position}
    if cell.gathered_by:
        about += f"; gathered by step {cell.gathered_by} at {ms(cell.gathered)} ms"
        x, reader = left + width / 2, cell.gathered_by
        page.add(
            svg_text(
                x, y + BOX + 12, str(reader), "small faint", "middle", gathered=reader, **where
            )
        )
    ink = f"small {'on' if look in PAINTS else 'in'}-{look}"
    page.add(
        rect(look, left + 0.5, y, width - 1, BOX, about, rid=tenancy.rid, step=cell.step, **where),
        svg_text(left + width / 2, y + 13, str(cell.step), ink, "middle"),
    )


MOST_STEPS, MOST_TENANCIES = 24, 10
TITLE = "token_pool: every token by row and position"
SIGN_OF = {"prompt": "u", "cached": "c", "decode": "s", "wasted": "w", "late": "!"}
SIGNS = (
    "u: a prompt's token, uploaded   c: uploaded, but its KV is cached   s: sampled   "
    "w: sampled by a wasted row   !: the same, in the prompt of the row's next owner"
)


def view(trace: Trace) -> str:
    """The steps on a time axis, and what each of them did to the pool.

    Raises:
        NothingToShow: no step ran, or no token pool was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    tenancies = need_tenancies(part)
    page = Page(TITLE, about_run(trace, shown))
    page.heading("Streams", "numbers: steps")
    draw_streams(page, part)
    page.top += 30
    note = "in a cell: the step that wrote it; below it: the step that gathered it"
    page.heading("Token pool", note)
    draw_pool(page, tenancies[:MOST_TENANCIES])
    page.legend(NAMES)
    page.notes(summary(tenancies))
    if len(tenancies) > MOST_TENANCIES:
        page.notes(f"{len(tenancies) - MOST_TENANCIES} later owners of rows are left out.")
    return page.finish()


def text(trace: Trace) -> str:
    """The streams and the table for a terminal.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    tenancies = need_tenancies(part)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Streams", "numbers: steps")
    lanes: dict[str, list[Stay]] = {lane: [] for lane in lanes_of(part)}
    for item in ops_of(part):
        words = str(item.step) if item.name == "forward" else ""
        lanes[item.lane].append(Stay("", item.name, item.start, item.end, words))
    page.lanes(list(lanes.items()), part.end)
    page.legend({name: NAMES[name] for name in ("upload", "forward", "sample")})
    page.heading("Token pool", "in a cell: the step that wrote it; below it: who gathered it")
    write_cells(page, tenancies[:MOST_TENANCIES])
    page.write("", SIGNS, "", summary(tenancies))
    return page.finish()


def need_tenancies(trace: Trace) -> list[Tenancy]:
    """Every owner of a row.

    Raises:
        NothingToShow: there is none.
    """
    if not (tenancies := tenancies_of(trace)):
        raise NothingToShow("the trace has no token pool mark: no token pool was used.")
    return tenancies


def summary(tenancies: list[Tenancy]) -> str:
    """How many cells were written how; the same in every form."""
    kinds = Counter(cell.kind for tenancy in tenancies for cell in tenancy.cells.values())
    gathered = sum(cell.gathered_by > 0 for t in tenancies for cell in t.cells.values())
    uploaded = kinds["prompt"] + kinds["cached"]
    return (
        f"{uploaded} tokens uploaded, {kinds['decode']} sampled, {kinds['wasted']} sampled by "
        f"wasted rows, {kinds['late']} too late; {gathered} gathered"
    )


def write_cells(page: TextPage, tenancies: list[Tenancy]) -> None:
    """The table, with two lines for each owner of a row."""
    names = [f"row {tenancy.row}: {short(tenancy.rid, 8)}" for tenancy in tenancies]
    titles = ["position", *(title for name in names for title in (name, "  gathered by"))]
    columns = []
    for position in range(min(MOST_POSITIONS, num_positions(tenancies))):
        column = [str(position)]
        for cell in (tenancy.cells.get(position) for tenancy in tenancies):
            column.append(f"{SIGN_OF[cell.kind]}{cell.step}" if cell else "")
            column.append(str(cell.gathered_by or "") if cell else "")
        columns.append(column)
    write_grid(page, titles, columns)
