"""The SVG's legend: what colours and arrows mean."""

from __future__ import annotations

from xml.sax.saxutils import escape

from .layout import View
from .palette import ARROWS, PAINTS
from .svg_style import box_class, char_width
from .svg_waits import FLAG, reasons_of, waits_of


def draw_legend(views: list[View], top: float, right: float) -> tuple[list[str], float]:
    """What the colours and arrows mean, as far as they occur; and where it ends."""
    boxes = [box for view in views for box in view.boxes if box.slice.duration]
    seen = {box_class(box.slice.name) for box in boxes}
    kinds = {arrow.brings for view in views for arrow in view.arrows}
    names = [(box_class(name), name) for name in [*PAINTS, "other"] if box_class(name) in seen]
    if any(not bubble.reason for view in views for bubble in view.bubbles):
        names.append(("bubble", "bubble: the device idles"))
    if reasons := dict.fromkeys(reason for view in views for reason in reasons_of(view)):
        names.append(("waited", f"the device waits for {', '.join(reasons)}"))
    if any(waits_of(view) for view in views):
        names.append(("flag", "the host lets an op wait"))
    names += [(f"arrow {kind}", text) for kind, text in ARROWS.items() if kind in kinds]
    drawn, x = [], 20.0
    for name, text in names:
        room = 26 + len(text) * char_width(12) + 12
        if x + room > right:
            x, top = 20.0, top + 22
        drawn.append(_sample(name, x, top))
        drawn.append(f'<text x="{x + 24:.1f}" y="{top}">{escape(text)}</text>')
        x += room
    return drawn, top + 8


def _sample(name: str, x: float, y: float) -> str:
    if name == "flag":
        return f'<path class="flag" d="M{x + 9:.1f} {y - 1}{FLAG}"/>'
    if not name.startswith("arrow "):
        kind = name if name in ("bubble", "waited") else f"box {name}"
        return f'<rect class="{kind}" x="{x:.1f}" y="{y - 10}" width="18" height="12" rx="2"/>'
    kind = name.removeprefix("arrow ")
    return f'<path class="arrow {kind}" d="M{x:.1f} {y - 4}h19"/>'
