"""One lane a step's array of tokens, over time, as SVG; and what each is built on."""

from __future__ import annotations

from ..svg_style import char_width
from .axes import TimeAxis
from .lazy_arrays import LazyArray
from .page import EDGE, LEFT, SIGNS, Page
from .shapes import band, line, path, rect, text
from .wording import short

PITCH, BOX = 22, 14
WORDS = {"promised": "a graph, no number yet", "stored": "computed, and not read by the host"}


def draw_arrays(page: Page, arrays: list[LazyArray], end: int) -> None:
    """The lanes, their boxes and the lines between them, over the time axis."""
    x, top = TimeAxis(end), page.top
    lanes = {array.step: top + at * PITCH for at, array in enumerate(arrays)}
    for array in arrays:
        y = lanes[array.step]
        page.add(band(LEFT, y + 2, EDGE - LEFT, PITCH - 4))
        page.add(text(20, y + 15, str(array.step), "small"))
        page.add(text(LEFT - 8, y + 15, array.mode, "small faint", "end"))
    page.top = top + len(arrays) * PITCH
    page.add(*x.grid(top, page.top))
    for array in arrays:
        page.add(*_box(array, x, lanes[array.step]))
    for array in arrays:
        page.add(*_source(array, x, lanes))
    page.add(*x.draw(page.top + 2))
    page.top += 28


def _box(array: LazyArray, x: TimeAxis, lane: float) -> list[str]:
    """What an array is while: first lazy, then computed."""
    y, drawn = lane + (PITCH - BOX) / 2, []
    if array.wasted:
        words = f"wasted: {short(', '.join(array.wasted), 30)}"
        drawn.append(_beside(x.x(array.built), x.x(array.read), lane + 15, words, array.step))
    about = f"tokens of step {array.step} ({' '.join(array.rids)})"
    for kind, start, end in array.phases:
        left, width = x.span(start, end)
        words = f"{about}: {WORDS[kind]}"
        drawn.append(rect(kind, left, y, width, BOX, words, step=array.step))
    return drawn


def _source(array: LazyArray, x: TimeAxis, lanes: dict[int, float]) -> list[str]:
    """A line from the array that this one is built on, at the moment at which it is."""
    at, to = x.x(array.bound), lanes[array.step] + PITCH / 2
    if array.source in lanes:
        y = lanes[array.source] + PITCH / 2
        about = f"step {array.step} is built on step {array.source}'s array, places {array.places}"
        sign = path("read", f"M{at:.1f} {y:.1f}{SIGNS['read']}", about, source=array.source,
                    step=array.step)  # fmt: skip
        return [line("link", at, y, at, to), sign]
    if not array.begins_anew:
        return []
    about = f"step {array.step} is built on tokens that the host has read"
    return [path("flag-head", f"M{at:.1f} {to:.1f}{SIGNS['flag-head']}", about, step=array.step)]


def _beside(left: float, right: float, y: float, words: str, step: int) -> str:
    """Words after a box, or before it where the page ends."""
    if right + 8 + len(words) * char_width(11) < EDGE:
        return text(right + 6, y, words, "small", wasted=step)
    return text(left - 10, y, words, "small", "end", wasted=step)
