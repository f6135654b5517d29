"""One lane a future slot, over time, as SVG: whose token it is for, and what became of that."""

from __future__ import annotations

from ...trace import Trace
from ..svg_style import char_width
from ..units import ms
from .axes import TimeAxis
from .future_slots import Ring, SlotStay, wraps_of
from .page import EDGE, LEFT, SIGNS, Page
from .shapes import Datum, band, line, path, rect, text

MOST_HEIGHT, TALLEST, LOWEST = 420, 22, 9
BAR = 3  # pixels that a stored token has at least: the next step mostly reads it at once


def draw_slots(page: Page, stays: list[SlotStay], ring: Ring | None, trace: Trace) -> None:
    """The lanes, what was in them when, and the moments at which the counter wraps."""
    last = max(stay.slot for stay in stays)
    pitch = min(TALLEST, max(LOWEST, MOST_HEIGHT / last))
    x, top = TimeAxis(trace.end), page.top + 6
    for slot in range(1, last + 1):
        y = top + (slot - 1) * pitch
        page.add(band(LEFT, y + 1, EDGE - LEFT, pitch - 2))
        if pitch > LOWEST + 2 or slot % 5 == 1:
            page.add(text(LEFT - 8, y + pitch / 2 + 4, str(slot), "small", "end"))
    page.add(text(20, top + pitch / 2 + 4, "slot", "small"))
    bottom = top + last * pitch
    page.add(*x.grid(top, bottom))
    for stay in stays:
        draw_stay(page, stay, x, top + (stay.slot - 1) * pitch + 2, pitch - 4)
    for lap, time in enumerate(wraps_of(trace, stays) if ring else (), 1):
        page.add(line("limit", x.x(time), top - 6, x.x(time), bottom, lap=lap))
    if ring and last > ring.limit:
        y = top + ring.limit * pitch
        page.add(line("axis", LEFT, y, EDGE, y), text(20, y + 4, "limit", "small faint"))
    page.top = bottom + 2
    page.add(*x.draw(page.top))
    page.top += 26


def draw_stay(page: Page, stay: SlotStay, x: TimeAxis, y: float, height: float) -> None:
    """One token's time in a slot, and the moments at which it is read."""
    whose = f"slot {stay.slot}: the token of {stay.rid} from step {stay.step}"
    where: dict[str, Datum] = {"slot": stay.slot, "rid": stay.rid, "step": stay.step}
    for kind, start, end in stay.phases:
        left, width = x.span(start, end)
        if kind != "stored":
            page.add(rect(kind, left, y, width, height, f"{whose}, {kind}", **where))
    if stay.sampled:
        left, width = x.span(stay.stored, stay.last_read)
        left, width = min(left, EDGE - BAR), max(BAR, width)
        page.add(rect("stored", left, y, width, height, f"{whose}, stored", **where))
    left, width = x.span(stay.promised, stay.stored)
    if len(stay.rid) * char_width(11) + 4 <= width and height >= 12:
        page.add(
            text(left + width / 2, y + height / 2 + 4, stay.rid, "small in-promised", "middle")
        )
    for time in stay.reads:
        kind = "flag-head" if time in stay.lost else "read"
        d = f"M{x.x(time):.1f} {y + height / 2:.1f}{SIGNS[kind]}"
        about = f"{whose}, read at {ms(time)} ms"
        page.add(path(kind, d, about, slot=stay.slot, rid=stay.rid))
    if stay.laps:
        d = f"M{left:.1f} {y + 5:.1f}{SIGNS['lapped']}"
        page.add(path("lapped", d, f"{whose}, in the place of an older one", **where))
