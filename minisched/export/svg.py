"""Runs one above the other on one time axis, as a picture that stands alone.

It follows the reader's system from light to dark and brings its own paper, so that it is legible
as an ``<img>`` on any page. The same traces give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from ..checks.causes import waits
from ..trace import Mark
from .layout import Arrow, Box, IdleStretch, Lane, View, meaning
from .palette import ARROW_COLOURS, ARROWS, DARK, LIGHT, OTHER, PAINTS, WAITED, Paint, Paper
from .units import ms

# -- What the SVG's parts look like: one style sheet for light and dark, hatching, arrow heads -----

FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'


def char_width(size: float, bold: bool = False) -> float:
    """About how wide one character is, on the safe side: fonts differ from reader to reader."""
    return size * (0.62 if bold else 0.57)


def style() -> str:
    """The style element: light by default, dark where the reader's system is."""
    rules = [
        f"text {{ font: 12px {FONT}; fill: var(--ink) }}",
        ".title { font-size: 16px; font-weight: 650 } .run { font-size: 13.5px; font-weight: 650 }",
        ".faint { fill: var(--faint) } .strong { fill: var(--ink) }",
        ".small { font-size: 11px } .bold { font-weight: 650 }",
        ".paper { fill: var(--paper); stroke: var(--grid) } .lane { fill: var(--lane) }",
        ".grid { stroke: var(--grid) } .axis { stroke: var(--faint) }",
        ".box { stroke: var(--gap); stroke-width: 1 }",
        ".hatch { stroke: var(--bubble); stroke-width: 1.6 }",
        ".bubble { fill: url(#hatch); stroke: var(--bubble) } .halo { fill: var(--paper) }",
        ".idle { fill: var(--bubble); font-size: 11px; font-weight: 650 }",
        ".end { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 3 3 }",
        ".saved { stroke: var(--ink); stroke-width: 1.2; fill: none }",
        ".arrow { fill: none; stroke-width: 1.4 }",
        *(
            f".arrow.{kind} {{ stroke: var(--{kind}); marker-end: url(#head-{kind}) }}"
            for kind in ARROWS
        ),
        *_box_rules(),
        ".wait { fill: none; stroke: var(--faint); stroke-dasharray: 2 2 } "
        ".on-wait { fill: var(--faint) }",
        ".thin { stroke: none } .arrow.thin { stroke-width: .6; opacity: .5; marker-end: none }",
        variables(),
    ]
    return "<style>\n" + "\n".join(rules) + "\n</style>"


def variables() -> str:
    """The colours as CSS variables, for light and for dark."""
    return (
        f":root {{ {_variables(LIGHT, 0)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK, 1)} }} }}"
    )


def definitions() -> str:
    """The hatching of bubbles and one arrow head a kind."""
    heads = "".join(
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="7" '
        f'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path style="fill:var(--{kind})" d="M0 0.6L8 4L0 7.4z"/></marker>'
        for kind in [*ARROWS, "ink"]
    )
    return (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" class="halo"/>'
        '<line x1="0" y1="0" x2="0" y2="6" class="hatch"/></pattern>' + heads + "</defs>"
    )


def box_class(name: str) -> str:
    """The class of a phase or an op; a space would make it two."""
    return name.replace(" ", "-") if name in PAINTS else "other"


def _box_rules() -> list[str]:
    paints: dict[str, Paint] = {**PAINTS, "other": OTHER}
    return [
        f".{kind} {{ fill: {paint.fill} }} .on-{kind} {{ fill: {paint.text}; font-size: 11px }}"
        for kind, paint in ((box_class(name), paint) for name, paint in paints.items())
    ]


def _variables(paper: Paper, which: int) -> str:
    colours = {
        "paper": paper.background,
        "ink": paper.ink,
        "faint": paper.faint_ink,
        "grid": paper.grid,
        "lane": paper.lane,
        "gap": paper.gap,
        "bubble": paper.bubble,
        **{kind: pair[which] for kind, pair in ARROW_COLOURS.items()},
    }
    return "; ".join(f"--{name}: {colour}" for name, colour in colours.items())


# -- The SVG's legend: what colours and arrows mean ------------------------------------------------


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


# -- How a wait looks in the SVG: a flag where the loop decided it, hatching over what it cost -----
#
# The rules stand in a picture only where something waits.

FLAG = "l-4 -6h8z"  # a triangle that stands on its tip


def has_waits(views: list[View]) -> bool:
    """Whether anything to be seen waits."""
    return any(waits_of(view) or reasons_of(view) for view in views)


def waits_of(view: View) -> list[Mark]:
    """The waits that were decided in the time shown."""
    return [mark for mark in waits(view.trace) if view.start <= mark.time <= view.end]


def reasons_of(view: View) -> list[str]:
    """What devices have waited for in the time shown, each reason once."""
    return list(dict.fromkeys(bubble.reason for bubble in view.bubbles if bubble.reason))


def wait_style() -> str:
    """The colours of waits, for light and for dark paper."""
    return (
        f"<style>\n{wait_variable()}\n"
        ".waited { fill: url(#hatch-waited); stroke: var(--waited) }\n"
        ".waited-for { fill: var(--waited); font-size: 11px; font-weight: 650 }\n"
        ".flag { fill: var(--waited) } .hatch-waited { stroke: var(--waited); stroke-width: 1.8 }\n"
        "</style>\n"
        '<defs><pattern id="hatch-waited" width="5" height="5" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(-45)"><rect width="5" height="5" class="halo"/>'
        '<line x1="0" y1="0" x2="0" y2="5" class="hatch-waited"/></pattern></defs>'
    )


def wait_variable() -> str:
    """The colour as a CSS variable, for light and for dark."""
    light, dark = WAITED
    return (
        f":root {{ --waited: {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --waited: {dark} }} }}"
    )


def draw_flags(frame: Frame) -> list[str]:
    """A flag above the host's lane for each wait, at the moment of the decision."""
    return [_flag(frame, mark) for mark in waits_of(frame.view)]


def _flag(frame: Frame, mark: Mark) -> str:
    side, lanes = str(mark.attrs.get("side", "")).capitalize(), frame.view.lanes
    hosts = (lane for lane in lanes if lane.side == "host" and lane.name.startswith(side))
    y = frame.y(next(hosts, lanes[0])) - 1
    return (
        f'<path class="flag" data-mark="wait" d="M{frame.x(mark.time):.1f} {y:.1f}{FLAG}">'
        f"<title>{escape(about(mark))} at {ms(mark.time)} ms</title></path>"
    )


def about(mark: Mark) -> str:
    """A wait in words: ``sample 5 waits for grammar``."""
    return "{op} {step} waits for {reason}".format(**mark.attrs)


# -- One run's panel in the SVG: lanes, boxes, bubbles and arrows ----------------------------------

PITCH, BOX = 36, 22  # from lane to lane, and how high a box is


@dataclass(frozen=True)
class Frame:
    """Where a panel lies on the page; ``scale`` is pixels per nanosecond."""

    view: View
    left: float
    right: float
    top: float
    scale: float

    @property
    def thin(self) -> str:
        """The class of arrows that stand too close for arrow heads."""
        return " thin" if len(self.view.arrows) * 5 > self.view.duration * self.scale else ""

    @property
    def bottom(self) -> float:
        """Below the last lane."""
        return self.top + PITCH * len(self.view.lanes)

    def x(self, time: int) -> float:
        """Where a moment of the run lies, kept inside the panel."""
        return self.left + self.view.clip(time, time)[0] * self.scale

    def span(self, start: int, end: int) -> tuple[float, float]:
        """Left edge and width of an interval."""
        start, end = self.view.clip(start, end)
        return self.left + start * self.scale, (end - start) * self.scale

    def y(self, lane: Lane) -> float:
        """The upper edge of a lane's boxes."""
        return self.top + PITCH * self.view.lanes.index(lane) + (PITCH - BOX) / 2


def draw_lanes(frame: Frame) -> list[str]:
    """The lanes and their names."""
    return [_lane(frame, lane) for lane in frame.view.lanes]


def draw_run(frame: Frame) -> list[str]:
    """What lies on the lanes."""
    return [
        *(_bubble(frame, bubble) for bubble in frame.view.bubbles),
        *(_box(frame, box) for box in frame.view.boxes if box.slice.duration > 0),
        *(_arrow(frame, arrow) for arrow in frame.view.arrows),
        *_wrong_tokens(frame),
    ]


def _lane(frame: Frame, lane: Lane) -> str:
    y, width = frame.y(lane), frame.view.duration * frame.scale
    side = "" if lane.name.lower().endswith(lane.side) else lane.side
    return (
        f'<rect class="lane" x="{frame.left:.1f}" y="{y - 3:.1f}" width="{width:.1f}" '
        f'height="{BOX + 6}"/>'
        f'<text x="20" y="{y + 15:.1f}">{escape(lane.name)} '
        f'<tspan class="faint small">{side}</tspan></text>'
    )


def _bubble(frame: Frame, bubble: IdleStretch) -> str:
    (x, width), y = frame.span(bubble.start, bubble.end), frame.y(bubble.lane)
    idle, reason = ms(bubble.end - bubble.start), escape(bubble.reason)
    text, about = f"{reason or 'idle'} {idle} ms", f" for {reason}" if reason else ""
    drawn = (
        f'<rect class="{"waited" if reason else "bubble"}" x="{x:.1f}" y="{y + 0.5}" '
        f'width="{width:.1f}" height="{BOX - 1}">'
        f"<title>bubble: {escape(bubble.lane.name.lower())} waits {idle} ms{about}</title></rect>"
    )
    room = len(text) * char_width(11, bold=True) + 8
    if room > width:
        return drawn
    return drawn + (
        f'<rect class="halo" x="{x + (width - room) / 2:.1f}" y="{y + 4}" width="{room:.1f}" '
        f'height="{BOX - 8}" rx="3"/>'
        f'<text class="{"waited-for" if reason else "idle"}" x="{x + width / 2:.1f}" y="{y + 15}" '
        f'text-anchor="middle">{text}</text>'
    )


def _box(frame: Frame, box: Box) -> str:
    item, kind = box.slice, box_class(box.slice.name)
    (x, width), y = frame.span(item.start, item.end), frame.y(box.lane)
    about = [box.label, f"{ms(item.start)} to {ms(item.end)} ms", f"{ms(item.duration)} ms"]
    about += [item.mode, " ".join(item.rids)] if item.rids else []
    size = "box" if width > 4 else "thin"
    drawn = (
        f'<rect class="{size} {kind}" x="{x:.1f}" y="{y:.1f}" width="{max(1, width):.1f}" '
        f'height="{BOX}" '
        f'rx="2" data-id="{item.id}" data-start="{item.start}" data-end="{item.end}">'
        f"<title>{escape(', '.join(about))}</title></rect>"
    )
    if label := _label(box, width):
        drawn += (
            f'<text class="on-{kind}" x="{x + width / 2:.1f}" y="{y + 15}" '
            f'text-anchor="middle">{escape(label)}</text>'
        )
    return drawn


def _label(box: Box, width: float) -> str:
    """As much as fits: phase and step, the step alone, or nothing."""
    short = "" if box.slice.name == "wait" else str(box.step or "")
    for label in (box.label, short):
        if label and len(label) * char_width(11) + 4 <= width:
            return label
    return ""


def _arrow(frame: Frame, arrow: Arrow) -> str:
    kind = arrow.brings if arrow.brings in ARROWS else "launch"
    x1, x2 = frame.x(arrow.start), frame.x(arrow.end)
    y1, y2 = frame.y(arrow.src.lane), frame.y(arrow.dst.lane)
    if arrow.is_level:  # a bow below it, from inside one box to inside the other
        x1, x2, y1 = x1 - 7, x2 + 14, y1 + BOX
        path = f"M{x1:.1f} {y1}C{x1:.1f} {y1 + 12} {x2:.1f} {y1 + 12} {x2:.1f} {y1}"
    else:
        down = y2 > y1
        y1, y2 = (y1 + BOX, y2) if down else (y1, y2 + BOX)
        path = f"M{x1:.1f} {y1}L{x2:.1f} {y2}"
    end = f"><title>{escape(meaning(arrow))}</title></path>" if arrow.wrong else "/>"
    return (
        f'<path class="arrow {kind}{frame.thin}" d="{path}" data-kind="{escape(arrow.kind)}" '
        f'data-src="{arrow.src.slice.id}" data-dst="{arrow.dst.slice.id}"{end}'
    )


def _wrong_tokens(frame: Frame) -> Iterator[str]:
    """Under each box that took a wrong token: what it got and needs, as far as there is room."""
    ends: dict[str, float] = {}  # by lane, how far its words reach
    for item in sorted(frame.view.wrong_tokens, key=lambda item: item.box.slice.start):
        (x, width), y = frame.span(item.box.slice.start, item.box.slice.end), frame.y(item.box.lane)
        first, *more = item.words.split("; ")  # all of them are on the arrow
        shown = f"{first} \u2026" if more else first
        room = len(shown) * char_width(11, bold=True)
        middle = min(max(x + width / 2, frame.left + room / 2), frame.right - room / 2)
        if middle - room / 2 < ends.get(item.box.lane.key, 0):
            continue
        ends[item.box.lane.key] = middle + room / 2
        yield (
            f'<text class="wrong-token" x="{middle:.1f}" y="{y + BOX + 11:.1f}" '
            'text-anchor="middle" style="fill:var(--wrong);font-size:11px;font-weight:650;'
            'stroke:var(--paper);stroke-width:3px;paint-order:stroke">'
            f"{escape(shown)}</text>"
        )


WIDTH, RIGHT = 900, 24  # pixels: the page, its right margin


def left_of(views: Sequence[View]) -> float:
    """Pixels for the longest name of a lane."""
    widths = (len(f"{lane.name} {lane.side}") for view in views for lane in view.lanes)
    return max(168, round(22 + max(widths) * char_width(12)))
