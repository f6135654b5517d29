"""What is red in the picture of a broken law: a numbered frame for each slice, a missing edge."""

from __future__ import annotations

from xml.sax.saxutils import escape

from .layout import Box
from .offence_view import Scene
from .svg_run import BOX, Frame
from .svg_style import char_width
from .units import exact, ms

RED = ("#C8102E", "#FF7A85")  # on light and on dark paper; always with a number or a dash beside it


def red_style() -> str:
    """The rules for what is red and for what is quiet, on light and on dark paper."""
    light, dark = RED
    return (
        f"<style>\n:root {{ --red: {light}; --quiet: 0.42 }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --red: {dark}; --quiet: 0.6 }} }}\n"
        ".quiet { opacity: var(--quiet) }\n"
        ".red { fill: none; stroke: var(--red); stroke-width: 3 }\n"
        ".red-missing { fill: none; stroke: var(--red); stroke-width: 2.2; "
        "stroke-dasharray: 6 4; marker-end: url(#head-red) }\n"
        ".red-disc { fill: var(--red) } .on-red { fill: var(--paper); font-size: 11px; "
        "font-weight: 700 }\n"
        ".red-text { fill: var(--red); font-weight: 650 }\n</style>\n"
        '<defs><marker id="head-red" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="9" '
        'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
        '<path style="fill:var(--red)" d="M0 0.6L8 4L0 7.4z"/></marker></defs>'
    )


def draw_culprits(frame: Frame, scene: Scene) -> list[str]:
    """A frame around each slice that did it, and its number; what takes no time is a stroke."""
    drawn, numbers, free = [], [], {lane: 0.0 for lane in frame.view.lanes}
    for number, box in enumerate(scene.culprits, 1):
        x, width = frame.span(box.slice.start, box.slice.end)
        y, width = frame.y(box.lane), max(width, 3)
        drawn.append(
            f'<rect class="red" x="{x - 1:.1f}" y="{y - 1:.1f}" width="{width + 2:.1f}" '
            f'height="{BOX + 2}" rx="3" data-offence="{box.slice.id}">'
            f"<title>{number}: {escape(box.label)}</title></rect>"
        )
        at = max(x - 9, free[box.lane])
        free[box.lane] = at + 17
        numbers.append(disc(at, y - 5, number))
    return drawn + numbers


def draw_missing(frame: Frame, scene: Scene) -> list[str]:
    """A dashed arrow from the end of the one to the begin of the other, or to what it frees."""
    if scene.missing is None:
        return []
    first, second = scene.missing
    ready = second.slice.end if scene.waits else second.slice.start  # a free: by the end of it
    x1, x2 = frame.x(first.slice.end), frame.x(ready)
    y1, y2 = frame.y(first.lane), frame.y(second.lane)
    if first.lane == second.lane:
        y1 = y2 = y1 + BOX
        path = f"M{x1:.1f} {y1}C{x1:.1f} {y1 + 16} {x2:.1f} {y1 + 16} {x2:.1f} {y1}"
    else:
        y1, y2 = (y1 + BOX, y2) if y2 > y1 else (y1, y2 + BOX)
        path = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
    return [f'<path class="red-missing" data-missing="{first.slice.id} {second.slice.id}" '
            f'd="{path}"/>']  # fmt: skip


def draw_missing_words(frame: Frame, scene: Scene, y: float) -> list[str]:
    """The same in words, below the lanes."""
    if scene.missing is None:
        return []
    text = f"missing: {scene.missing_words}"
    room = len(text) * char_width(12, bold=True)
    middle = sum(frame.x(at) for at in (scene.missing[0].slice.end, scene.missing[1].slice.start))
    x = max(frame.left, min(middle / 2 - room / 2, frame.right - room))
    return [f'<text class="red-text" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>']


def draw_list(scene: Scene, top: float) -> tuple[list[str], float]:
    """A line for each slice that did it: its number, and where and when it ran."""
    drawn = []
    for number, box in enumerate(scene.culprits, 1):
        drawn.append(disc(20, top - 4, number))
        drawn.append(f'<text x="44" y="{top}">{escape(about(box))}</text>')
        top += 20
    return drawn, top


def about(box: Box) -> str:
    """``sample 3 on Forward stream, 10.2 to 12.3 ms, for r0 r1``."""
    item = box.slice
    rids = f", for {' '.join(item.rids)}" if item.rids else ""
    return f"{box.label} on {box.lane.title}, {when(item.start)} to {when(item.end)} ms{rids}"


def when(time: int) -> str:
    """A moment in milliseconds; one that would be rounded to nothing in full."""
    return ms(time) if time >= 10_000 else exact(time)


def disc(x: float, y: float, number: int) -> str:
    """A number on a red disc, whose left edge is at ``x``."""
    return (
        f'<circle class="red-disc" cx="{x + 8:.1f}" cy="{y:.1f}" r="8"/>'
        f'<text class="on-red" x="{x + 8:.1f}" y="{y + 4:.1f}" text-anchor="middle">{number}</text>'
    )
