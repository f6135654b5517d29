"""Steps of which nobody needed the tokens, outlined in a picture of the whole run."""

from __future__ import annotations

import re

from ..trace import Trace
from .figure import LessonFigure

STYLE = (
    "<style>.wasted { fill: none !important; stroke: var(--bubble) !important; stroke-width: 2 } "
    "text.of-wasted { fill: var(--bubble); font-size: 11px }</style>"
)


def mark_wasted(figure: LessonFigure, trace: Trace) -> LessonFigure:
    """The same picture; boxes on the device of steps with a wasted row of ``trace`` are outlined.

    ``trace`` is the run at the bottom of the picture, of one request: a wasted row is a wasted
    step.
    """
    steps = {mark.attrs["step"] for mark in trace.marks if mark.name == "wasted row"}
    svg = figure.svg
    for item in trace.slices:
        if item.step in steps and item.lane != "host":
            svg = _outline(svg, f'data-id="{item.id}" data-start="{item.start}"')
    return LessonFigure(svg.replace("</svg>", f"{STYLE if steps else ''}</svg>"))


def _outline(svg: str, where: str) -> str:
    """The last box with these attributes outlined, and the words on it."""
    at = svg.rfind(where)
    if at < 0:
        return svg
    begin = svg.rindex("<rect", 0, at)
    end = svg.find("</rect>", at) + len("</rect>")
    box = re.sub(r'class="(box|thin) [\w-]+"', r'class="\1 wasted"', svg[begin:end])
    box = box.replace("<title>", "<title>wasted: ", 1)
    words = re.match(r'<text class="on-[\w-]+"([^>]*)>([^<]*)</text>', svg[end:])
    if words is None:
        return svg[:begin] + box + svg[end:]
    said = f'<text class="of-wasted"{words[1]}>{_wasted(words[2])}</text>'
    return svg[:begin] + box + said + svg[end + len(words[0]) :]


def _wasted(label: str) -> str:
    return label.replace("forward", "wasted")
