"""One run's panel in the SVG: lanes, boxes, bubbles and arrows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .arrow_words import meaning
from .lane import Lane
from .layout import Arrow, Box, IdleStretch, View
from .palette import ARROWS
from .svg_style import box_class, char_width
from .units import ms

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
    return (
        f'<rect class="lane" x="{frame.left:.1f}" y="{y - 3:.1f}" width="{width:.1f}" '
        f'height="{BOX + 6}"/>'
        f'<text x="20" y="{y + 15:.1f}">{escape(lane.name)} '
        f'<tspan class="faint small">{lane.side}</tspan></text>'
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
