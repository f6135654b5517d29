"""A picture that plays: a cursor moves over its lanes, and a veil covers the time after it.

CSS alone, so that it plays in an ``<img>``. It starts and ends as the whole picture. The picture
stands still if the reader wants no motion (``prefers-reduced-motion``), or without CSS.
"""

from __future__ import annotations

import re
from itertools import pairwise

from .looks import DARK
from .svg_style import painted

STANDS, PLAYS = 4.0, 10.0  # seconds of the whole picture, and of playing
FADE = 0.4  # seconds, at both ends
LANE = re.compile(
    r'<rect class="lane"[^x]* x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)'
)
FRAME = 2  # pixels of a veil beyond the lanes, for the frames of their last boxes
APART = 30  # pixels between lanes that belong to two parts of a picture
ROUND = STANDS + FADE + PLAYS + FADE


def playing(svg: str) -> str:
    """Make a picture of ``scene_svg`` play; return one without lanes as it is."""
    lanes = [tuple(map(float, found.groups())) for found in LANE.finditer(svg)]
    if not lanes:
        return svg
    left, width = lanes[0][0], lanes[0][2]
    cuts = [at for at, (one, other) in enumerate(pairwise(lanes), 1)
            if other[1] - one[1] - one[3] > APART]  # fmt: skip
    blocks = [lanes[begin:end] for begin, end in pairwise([0, *cuts, len(lanes)])]
    sides = [(block[0][1] - 3, block[-1][1] + block[-1][3] + 5) for block in blocks]
    wide = width + FRAME
    veil = "".join(f"M{left} {top:.1f}h{wide}V{bottom:.1f}h-{wide}z" for top, bottom in sides)
    line = "".join(f"M{left} {top:.1f}V{bottom:.1f}" for top, bottom in sides)
    drawn = painted(f'<path class="veil" d="{veil}"/>\n<path class="cursor" d="{line}"/>\n')
    before, end, after = svg.rpartition("</svg>")
    return before.replace("</style>", _rules(left, width) + "</style>", 1) + drawn + end + after


def _rules(left: float, width: float) -> str:
    """Return the style of veil and cursor; both are invisible for readers who want no motion."""
    fades, plays, ends, gone = (
        f"{100 * at / ROUND:.2f}%" for at in (STANDS, STANDS + FADE, ROUND - FADE, ROUND)
    )
    rules = [
        f"@media (prefers-color-scheme: dark) {{ .veil {{ fill: {DARK['paper']} }} "
        f".cursor {{ stroke: {DARK['bubble']} }} }}",
        f"@media (prefers-reduced-motion: no-preference) {{ .veil {{ animation: veil {ROUND}s "
        f"linear infinite; transform-origin: {left + width + FRAME}px 0 }}",
        f".cursor {{ animation: cursor {ROUND}s linear infinite }} }}",
    ]
    for name, most, moved in (("veil", 0.93, "scaleX(0)"), ("cursor", 1, f"translateX({width}px)")):
        rules.append(
            f"@keyframes {name} {{ 0%, {fades} {{ opacity: 0 }} "
            f"{plays} {{ opacity: {most}; transform: none }} "
            f"{ends} {{ opacity: {most}; transform: {moved} }} "
            f"{gone} {{ opacity: 0; transform: {moved} }} }}"
        )
    return "\n".join(rules) + "\n"
