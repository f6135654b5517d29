"""The token pool's table as SVG, under the streams that write and gather its cells."""

from __future__ import annotations

from ...trace import Slice, Trace
from ...trace.events import is_forward
from ..palette import PAINTS
from ..svg_style import char_width
from ..units import ms
from .axes import TimeAxis
from .page import EDGE, LEFT, Page
from .shapes import band, rect, text
from .token_cells import Tenancy, TokenCell
from .wording import short

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
        page.add(band(LEFT, y, EDGE - LEFT, 20), text(20, y + 14, short(lane, 12)))
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
        page.add(text(left + width / 2, y + 14, str(item.step), kind, "middle"))


def draw_pool(page: Page, tenancies: list[Tenancy]) -> None:
    """A line of cells for each request that had a row, under the numbers of the positions."""
    columns = num_positions(tenancies)
    shown = min(columns, MOST_POSITIONS)
    width = (EDGE - LEFT) / shown
    page.add(text(20, page.top + 12, "position", "small"))
    for position in range(shown):
        middle = LEFT + (position + 0.5) * width
        page.add(text(middle, page.top + 12, str(position), "small faint", "middle"))
    page.top += 20
    for tenancy in tenancies:
        page.add(text(20, page.top + 13, f"row {tenancy.row}: {short(tenancy.rid, 5)}"))
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
            text(x, y + BOX + 12, str(reader), "small faint", "middle", gathered=reader, **where)
        )
    ink = f"small {'on' if look in PAINTS else 'in'}-{look}"
    page.add(
        rect(look, left + 0.5, y, width - 1, BOX, about, rid=tenancy.rid, step=cell.step, **where),
        text(left + width / 2, y + 13, str(cell.step), ink, "middle"),
    )
