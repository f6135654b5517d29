"""A map of memory over time in which every page (or row) can be told apart."""

from __future__ import annotations

from ..state import Panel, Stay
from ..state.leases import ZOMBIE
from ..svg_style import char_width
from ..units import ms, tick_step
from .axes import TimeAxis
from .page import Page
from .page_blocks import PlaceBlock, blocks_of
from .shapes import band, rect, text
from .wording import short

HIGH, TALLEST = 18, 480  # pixels: of one page at most, and of the whole map


def draw_map(page: Page, panel: Panel, places: int, unit: str, x: TimeAxis) -> None:
    """One lane a page: a box while it is somebody's, with whose it is; free where there is none.

    Neighbours that go the same way share a box. ``places`` is how many lanes there are.
    """
    high = min(HIGH, TALLEST / max(1, places))
    top, bottom = page.top, page.top + high * places
    page.add(band(x.left, top, x.right - x.left, high * places), *x.grid(top, bottom))
    every = tick_step(places, 16) if high < 12 else 1
    for at in range(1, places + 1):
        if at == 1 or at % every == 0:
            y = top + (at - 0.5) * high + 4
            page.add(text(x.left - 8, y, f"{unit} {at}", "small", "end"))
    for block in blocks_of(panel.stays):
        _draw(page, block, top + (block.first - 1) * high, block.size * high, x, unit)
    page.top = bottom


def _draw(page: Page, block: PlaceBlock, y: float, height: float, x: TimeAxis, unit: str) -> None:
    stay = block.stay
    left, width = x.span(stay.start, stay.end)
    page.add(
        rect(stay.kind, left, y, width, height, about(block, unit), unit=unit, first=block.first,
             last=block.last, rid=stay.rid, start=stay.start, end=stay.end)
    )  # fmt: skip
    most = int((width - 4) / char_width(11))
    words = stay.label if len(stay.label) <= most else short(stay.label, most) if most > 3 else ""
    if height >= 11 and words:
        middle = left + width / 2, y + height / 2 + 4
        page.add(text(*middle, words, f"small in-{stay.kind}", "middle"))


def about(block: PlaceBlock, unit: str) -> str:
    """A block in words."""
    ids = f"{unit} {block.first}" + f" to {block.last}" * (block.size > 1)
    return f"{ids}, {ms(block.stay.start)} to {ms(block.stay.end)} ms: {whose(block.stay)}"


def whose(stay: Stay) -> str:
    """In whose hands something is, in words."""
    if stay.rid:
        return f"{stay.label}, which {ZOMBIE}" if stay.kind == "wasted" else stay.rid
    return stay.about + f"; {stay.label} computed it" * bool(stay.label)
