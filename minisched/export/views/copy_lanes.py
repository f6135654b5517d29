"""The copy path as SVG: two strips a step, what the device does for it and what the host does."""

from __future__ import annotations

from ...trace import Slice
from ..svg_style import char_width
from ..units import ms
from .axes import TimeAxis
from .copy_paths import CopyPath
from .page import EDGE, LEFT, SIGNS, Page
from .shapes import Datum, band, path, rect, text
from .wording import short

PITCH, UPPER, LOWER = 30, 13, 9  # pixels: from step to step, and how high its two strips are
COLUMN = 70  # of each of the two columns of numbers
RIGHT = EDGE - 2 * COLUMN
BUFFER_PITCH, BUFFER = 24, 17


def draw_paths(page: Page, paths: list[CopyPath], end: int) -> None:
    """The strips, with what each step waited or lay ready for, over the time axis."""
    x, top = TimeAxis(end, right=RIGHT), page.top + 14
    page.add(text(20, top - 3, "step", "small faint"))
    for at, words in enumerate(("ready, ms", "waited, ms"), 1):
        page.add(text(RIGHT + at * COLUMN, top - 3, words, "small faint", "end"))
    for at in range(len(paths)):
        page.add(band(LEFT, top + at * PITCH + 2, RIGHT - LEFT, UPPER + LOWER + 1))
    page.top = top + len(paths) * PITCH
    page.add(*x.grid(top, page.top))
    for at, one in enumerate(paths):
        draw_path(page, one, x, top + at * PITCH + 2)
    page.add(*x.draw(page.top + 2))
    page.top += 54


def draw_path(page: Page, one: CopyPath, x: TimeAxis, y: float) -> None:
    """One step: its ops and its tokens above, the host below, its times at the right."""
    page.add(text(20, y + 15, short(one.name, 11)))
    if len(one.name) + len(one.mode) <= 9:
        page.add(text(LEFT - 8, y + 15, one.mode, "small faint", "end"))
    for item in [*one.ops, *([one.copy] if one.copy else [])]:
        page.add(box(item, x, y, UPPER))
    if one.copy and one.process and one.ready:
        left, width = x.span(one.copy.end, one.process.start)
        about = f"tokens of step {one.name} lie in host buffer {one.buffer}: {ms(one.ready)} ms"
        page.add(rect("evictable", left, y, width, UPPER, about, ready=one.name))
    for item in [*([one.prepare] if one.prepare else []), *one.waits]:
        page.add(box(item, x, y + UPPER + 1, LOWER))
    if one.process:
        page.add(box(one.process, x, y + UPPER + 1, LOWER))
    if one.copy:
        d = f"M{x.x(one.copy.end):.1f} {y + UPPER / 2:.1f}{SIGNS['read']}"
        about = f"copy_done of step {one.name}, at {ms(one.copy.end)} ms"
        page.add(path("read", d, about, step=one.name))
    for at, time in enumerate((one.ready, one.waited), 1):
        kind = "small" if time else "small faint"
        page.add(text(RIGHT + at * COLUMN, y + 15, ms(time), kind, "end"))


def box(item: Slice, x: TimeAxis, y: float, height: float) -> str:
    """One op or phase; a wait is told from others by how long it is, in nanoseconds."""
    left, width = x.span(item.start, item.end)
    about = f"step {item.step}, {item.name}: {ms(item.start)} to {ms(item.end)} ms"
    data: dict[str, Datum] = {"step": item.step, "op": item.name, "ns": item.duration}
    return rect(item.name, left, y, width, height, about, **data)


def draw_buffers(page: Page, paths: list[CopyPath], end: int) -> None:
    """A lane for each pinned buffer: from when a copy begins to write it until it is read."""
    x, top = TimeAxis(end, right=RIGHT), page.top
    lanes: dict[tuple[str, int], list[CopyPath]] = {}
    for one in paths:
        if one.copy:
            lanes.setdefault((one.side, one.buffer), []).append(one)
    page.add(*x.grid(top, top + BUFFER_PITCH * len(lanes)))
    for at, (side, number) in enumerate(sorted(lanes)):
        y = top + at * BUFFER_PITCH + 3
        words = f"{side or 'buffer'} {number}"
        page.add(band(LEFT, y, RIGHT - LEFT, BUFFER), text(20, y + 13, words))
        mine = lanes[side, number]
        starts = [x.x(one.copy.start) for one in mine if one.copy]
        for one, room in zip(mine, [*starts[1:], float(EDGE)], strict=True):
            draw_stay(page, one, x, y, end, room)
    page.top = top + BUFFER_PITCH * len(lanes) + 2
    page.add(*x.draw(page.top))
    page.top += 26


def draw_stay(page: Page, one: CopyPath, x: TimeAxis, y: float, end: int, next_left: float) -> None:
    """One step's tokens in a buffer; the step's number in the box, or behind it."""
    assert one.copy is not None
    until = one.process.start if one.process else end
    left, width = x.span(one.copy.start, max(one.copy.end, until))
    about = f"buffer {one.buffer}: tokens of step {one.name}, until {ms(until)} ms"
    data: dict[str, Datum] = {"step": one.name, "buffer": one.buffer}
    page.add(rect("copy", left, y + 1, width, BUFFER - 2, about, **data))
    room = len(str(one.step)) * char_width(11) + 2
    if room <= width:
        page.add(text(left + width / 2, y + 13, str(one.step), "small on-copy", "middle"))
    elif left + width + 2 + room <= next_left:
        page.add(text(left + width + 2, y + 13, str(one.step), "small"))
