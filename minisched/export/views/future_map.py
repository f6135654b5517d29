"""The future slots over time: promised when a step is launched, stored by it, read by the next."""

from __future__ import annotations

from ...trace import Trace
from ..svg_style import char_width
from .axes import TimeAxis
from .future_slots import Stay, stays_of
from .marks import NothingToShow
from .page import EDGE, LEFT, SIGNS, Page, about_run
from .shapes import band, path, rect, text
from .steps import opening

MOST_STEPS, MOST_HEIGHT, TALLEST, LOWEST = 36, 420, 22, 9
NAMES = {
    "promised": "promised: its step is launched, the token does not exist",
    "stored": "stored: the token is there, somebody will read it",
    "stale": "stale: nobody will read it any more",
    "read": "read by the next step's forward",
}


def view(trace: Trace) -> str:
    """One lane a future slot.

    Raises:
        NothingToShow: no step ran, or no future map was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    stays = stays_of(part)
    if not stays:
        raise NothingToShow("the trace has no future slots mark: no future map was used.")
    page = Page("future_map: tokens on their way to the next step", about_run(trace, shown))
    last = max(stay.slot for stay in stays)
    pitch = min(TALLEST, max(LOWEST, MOST_HEIGHT / last))
    page.heading("Future slots", "labels: whose token")
    x, top = TimeAxis(part.end), page.top
    for slot in range(1, last + 1):
        y = top + (slot - 1) * pitch
        page.add(band(LEFT, y + 1, EDGE - LEFT, pitch - 2))
        if pitch > LOWEST + 2 or slot % 5 == 1:
            page.add(text(LEFT - 8, y + pitch / 2 + 4, str(slot), "small", "end"))
    page.add(text(20, top + pitch / 2 + 4, "slot", "small"))
    page.add(*x.grid(top, top + last * pitch))
    for stay in stays:
        _draw_stay(page, stay, x, top + (stay.slot - 1) * pitch + 2, pitch - 4)
    page.top = top + last * pitch + 2
    page.add(*x.draw(page.top))
    page.top += 26
    page.legend(NAMES)
    return page.finish()


def _draw_stay(page: Page, stay: Stay, x: TimeAxis, y: float, height: float) -> None:
    """One token's time in a slot, and the moments at which it is read."""
    whose = f"slot {stay.slot}: the token of {stay.rid} from step {stay.step}"
    for kind, start, end in (
        ("promised", stay.promised, stay.stored),
        ("stale", stay.last_read, stay.gone),
        ("stored", stay.stored, stay.last_read),
    ):
        if end > start:
            left, width = x.span(start, end)
            about = f"{whose}, {kind}"
            page.add(rect(kind, left, y, width, height, about, slot=stay.slot, rid=stay.rid,
                          step=stay.step))  # fmt: skip
    left, width = x.span(stay.promised, stay.stored)
    if len(stay.rid) * char_width(11) + 4 <= width and height >= 12:
        page.add(
            text(left + width / 2, y + height / 2 + 4, stay.rid, "small in-promised", "middle")
        )
    for time in stay.reads:
        d = f"M{x.x(time):.1f} {y + height / 2:.1f}{SIGNS['read']}"
        page.add(path("read", d, f"{whose}, read", slot=stay.slot, rid=stay.rid))
