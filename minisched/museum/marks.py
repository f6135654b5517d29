"""What a picture says in red: the accesses that did it, and the order that is missing."""

from __future__ import annotations

from xml.sax.saxutils import escape

from ..checks.offence import Offence
from ..export.lane import Lane
from ..export.layout import Box
from ..export.svg_run import BOX, Frame

RED, RED_ON_DARK = "#C8102E", "#FF7A85"  # beside every colour of the palette, thick and with a sign
SIGN = "M-4 -4L4 4M-4 4L4 -4"  # a cross, so that the mark does not hang on its colour


def red_style() -> str:
    """The rules of what is red, on light and on dark paper."""
    return (
        "<style>\n"
        f":root {{ --red: {RED} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --red: {RED_ON_DARK} }} }}\n"
        ".red { fill: none; stroke: var(--red); stroke-width: 3 }\n"
        ".red-under { fill: none; stroke: var(--paper); stroke-width: 6 }\n"
        ".red-missing { fill: none; stroke: var(--red); stroke-width: 2; stroke-dasharray: 5 3 }\n"
        ".red-sign { fill: none; stroke: var(--red); stroke-width: 2.6 }\n"
        ".red-disc { fill: var(--paper); stroke: var(--red); stroke-width: 1.6 }\n"
        ".red-text { fill: var(--red); font-weight: 650 }\n"
        "</style>"
    )


def draw_offence(frame: Frame, offence: Offence) -> list[str]:
    """A frame and a cross for each slice that did it, and the missing order as a dashed line."""
    boxes = {box.slice.id: box for box in frame.view.boxes}
    marked = [box for box in frame.view.boxes if box.slice.id in offence.slices]
    drawn = [_marked(frame, box) for box in marked] + _signs(frame, marked)
    if offence.missing and all(number in boxes for number in offence.missing):
        drawn.append(_missing(frame, *(boxes[number] for number in offence.missing)))
    return drawn


def red_legend(x: float, y: float, has_missing: bool) -> str:
    """What the red marks mean."""
    drawn = (
        f'<rect class="red" x="{x}" y="{y - 10}" width="18" height="12" rx="2"/>'
        f'<text class="red-text" x="{x + 26}" y="{y}">what did it</text>'
    )
    if has_missing:
        drawn += (
            f'<path class="red-missing" d="M{x + 120} {y - 4}h26"/>'
            f'<text class="red-text" x="{x + 154}" y="{y}">nothing orders these two</text>'
        )
    return drawn


def sign(x: float, y: float) -> str:
    """A cross on a disc."""
    return (
        f'<g transform="translate({x:.1f} {y:.1f})"><circle class="red-disc" r="7.5"/>'
        f'<path class="red-sign" d="{SIGN}"/></g>'
    )


def _marked(frame: Frame, box: Box) -> str:
    """One slice; what takes no time is a stroke."""
    x, width = frame.span(box.slice.start, box.slice.end)
    y, width = frame.y(box.lane), max(width, 3)
    shape = f'x="{x - 1:.1f}" y="{y - 1:.1f}" width="{width + 2:.1f}" height="{BOX + 2}" rx="3"'
    title = f"<title>{escape(box.label)}: this did it</title>"
    return (
        f'<rect class="red-under" {shape}/>'
        f'<rect class="red" {shape} data-offence="{box.slice.id}">{title}</rect>'
    )


def _signs(frame: Frame, marked: list[Box]) -> list[str]:
    """A cross at the end of each slice; of those that stand close together, of the first."""
    drawn: list[str] = []
    free: dict[Lane, float] = {}
    for box in marked:
        x = max(frame.x(box.slice.end), frame.x(box.slice.start) + 3)
        if x >= free.get(box.lane, 0):
            drawn.append(sign(x, frame.y(box.lane) - 1))
            free[box.lane] = x + 18
    return drawn


def _missing(frame: Frame, first: Box, second: Box) -> str:
    """From where the first one ended to where the second one should have waited for it."""
    x1, x2 = frame.x(first.slice.end), frame.x(second.slice.start)
    y1, y2 = frame.y(first.lane) + BOX / 2, frame.y(second.lane) + BOX / 2
    bend = 26 if first.lane == second.lane else 0
    middle = (x1 + x2) / 2, (y1 + y2) / 2 + bend
    return (
        f'<path class="red-missing" d="M{x1:.1f} {y1:.1f}Q{middle[0]:.1f} '
        f'{middle[1] + bend:.1f} {x2:.1f} {y2:.1f}"/>'
    )
