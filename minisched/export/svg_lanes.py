"""Lanes on an SVG's page: backgrounds and grid, boxes, arrows, and then the words.

Words are placed last, where no arrow runs; what has no such place is drawn over the arrow with a
rim of its box's colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from .looks import OVER, SIGNS, css
from .scene import LaneItem, LaneLink, LaneRow, Lanes
from .svg_page import BOX, EDGE, MARGIN, PITCH, SvgPage, TimeScale, cut, width_of

SLANT = 30  # pixels to the side: an arrow over several rows that goes farther has a bend
MOST_HIGH = 740  # of lanes; more of them are narrower


@dataclass
class _Strip:
    """Where a row lies."""

    row: LaneRow
    y: float  # the upper edge of its boxes
    said: float = 0.0  # how far the words below it reach
    numbered: float = -99.0  # where the last number of a frame stands


class LanesDrawing:
    """Lanes on a page: backgrounds and grid, boxes, arrows, and then the words."""

    def __init__(self, page: SvgPage, lanes: Lanes) -> None:
        self.page, self.lanes = page, lanes
        self.x = TimeScale(lanes.start, lanes.end, page.left)
        count = len(lanes.rows) + sum(row.measure is not None for row in lanes.rows)
        self.pitch = min(PITCH, max(9, MOST_HIGH / max(1, count)))
        self.box = self.pitch - (PITCH - BOX if self.pitch > 16 else 2)
        self.top = page.top + 14 * any(flag.end == flag.start for flag in lanes.flags)
        self.strips: list[_Strip] = []
        y, group = self.top + (self.pitch - self.box) / 2, ""
        for at, row in enumerate(lanes.rows):
            y += 20 if row.measure else 8 if at and row.group != group else 0
            group = row.group
            self.strips.append(_Strip(row, y))
            if any(span.kind == "said" for span in row.spans):
                below = lanes.rows[at + 1].spans if at + 1 < len(lanes.rows) else ()
                y += 24 if any(span.kind == "outline" for span in below) else 10  # numbers are high
            y += self.pitch
        self.bottom = y - (self.pitch - self.box) / 2
        self.segments = [
            (*start, *end)
            for link in lanes.links
            if link.src[0] != link.dst[0]
            for start, end in pairwise(self._route(link))
        ]
        moments = (self.x.at(flag.start) for flag in lanes.flags if flag.end == flag.start)
        self.segments += [(at, self.top, at, self.bottom) for at in moments]

    def draw(self, has_axis: bool) -> None:
        """Everything, from the back to the front."""
        page, group = self.page, ""
        for strip in self.strips:
            self._background(strip, is_first=strip.row.group != group)
            group = strip.row.group
        self.x.grid(page, self.top, self.bottom)
        spans = [(span, strip) for strip in self.strips for span in strip.row.spans]
        over = [pair for pair in spans if pair[0].kind in OVER]  # arrows run below these
        below = [pair for pair in spans if pair[0].kind not in OVER]
        for span, strip in sorted(below, key=lambda pair: pair[0].kind != "both"):
            self._shape(span, strip)
        for link in self.lanes.links:
            self._arrow(link)
        for span, strip in over:
            self._shape(span, strip)
        for span, strip in spans:
            self._label(span, strip)
        for strip in self.strips:
            self._tail(strip)
        for strip in self.strips:
            if strip.row.measure:
                self._measure(strip.row.measure, strip.y)
        page.flags(self.lanes.flags, self.x, self.top, self.bottom)
        page.top = self.bottom + (8 if has_axis else 20)
        if has_axis:
            self.x.draw(page, self.lanes.across)

    def _background(self, strip: _Strip, is_first: bool) -> None:
        page, row, y, left = self.page, strip.row, strip.y, self.x.left
        page.drawn.append(
            f'<rect class="lane" x="{left:.1f}" y="{y - 3:.1f}" width="{EDGE - left:.1f}" '
            f'height="{self.box + 6:.1f}"/>'
        )
        if self.pitch < 12 and self.strips.index(strip) % 5:
            return
        middle = y + self.box / 2 + 4
        if row.group:
            page.words(left - 8, middle, row.name, "small faint", "end")
            if is_first:
                page.words(MARGIN, middle, row.group, "bold")
                page.words(MARGIN, middle + 15, row.group_note, "small faint")
            return
        room = left - MARGIN - 8
        name = cut(row.name, room)
        page.words(MARGIN, middle, name, "small" if self.pitch < 16 else "")
        at = MARGIN + width_of(name, 12) + 7
        if at + width_of(row.note) <= left - 4:
            page.words(at, middle, row.note, "small faint")

    def _shape(self, span: LaneItem, strip: _Strip) -> None:
        page, x, y = self.page, self.x.at(span.start), strip.y
        width = self.x.at(span.end) - x
        if span.kind in SIGNS:
            at = y - 1 if span.kind == "flag" else y + self.box / 2
            page.sign(span.kind, x, at, span.about, span.data)
        elif span.kind == "both":
            page.rect("both", x, y - 3, width, self.box + 6, span.about, span.data)
        elif span.kind == "outline":
            page.rect("outline", x - 1, y - 1, max(3, width) + 2, self.box + 2, span.about,
                      span.data)  # fmt: skip
            left = strip.numbered = max(x - 9, strip.numbered + 17)
            page.drawn.append(f'<circle class="disc" cx="{left + 8:.1f}" cy="{y - 5:.1f}" r="8"/>')
            page.words(left + 8, y - 1, span.label, "small on-disc", "middle")
        elif span.kind == "ghost":
            page.rect("ghost", x, y + 1, max(3, width), self.box - 2, span.about)
        elif span.kind != "said":
            kind = f"box {css(span.kind)}" + " thin" * (width <= 4)
            least = 1.0 if span.end > span.start else 3.0
            x = min(x, EDGE - least) if span.end == span.start else x
            page.rect(kind, x, y, max(least, width), self.box, span.about, span.data)

    def _tail(self, strip: _Strip) -> None:
        """Words behind the last thing on a row, or before the first where the page ends."""
        words, spans = strip.row.tail, strip.row.spans
        if not words or not spans:
            return
        y = strip.y + self.box / 2 + 4
        right = max(self.x.at(span.end) for span in spans) + 6
        if right + width_of(words) <= EDGE:
            self.page.words(right, y, words, "small")
        else:
            left = min(self.x.at(span.start) for span in spans) - 6
            self.page.words(left, y, cut(words, left - self.x.left), "small", "end")

    def _label(self, span: LaneItem, strip: _Strip) -> None:
        """As much as fits, where no arrow runs and no sign stands, if there is such a place."""
        y = strip.y
        x, width = self.x.at(span.start), self.x.at(span.end) - self.x.at(span.start)
        if span.kind == "said":
            room = width_of(span.label, 11, bold=True)
            middle = min(max(x + width / 2, self.x.left + room / 2), EDGE - room / 2)
            if middle - room / 2 >= strip.said:  # else the words are in the notes alone
                strip.said = middle + room / 2 + 6
                low = y + self.box + 15
                self.page.words(middle, low, span.label, "small said", "middle", span.data)
            return
        if span.kind in (*SIGNS, *OVER) or self.box < 11:
            return
        is_bold = span.kind in ("bubble", "waited")
        fallback: tuple[str, float] | None = None
        for words in dict.fromkeys((span.label, span.brief)):
            room = width_of(words, 11, is_bold) + 4
            if not words or room > width:
                continue
            at = self._free(x, width, room, strip)
            if at is not None:
                fallback = words, at
                break
            if not any(abs(x + width / 2 - at) < room / 2 + 5 for at in self._signs(strip)):
                fallback = fallback or (words, x + width / 2)
        if fallback:
            words, at = fallback
            self.page.said.add(words)
            kind = f"small in-{css(span.kind)}"
            self.page.words(at, y + self.box / 2 + 4, words, kind, "middle")

    def _free(self, x: float, width: float, room: float, strip: _Strip) -> float | None:
        """The middle of a place in a box that nothing crosses, nearest to the box's own."""
        slack, y = (width - room) / 2, strip.y
        signs = self._signs(strip)
        offsets = [0.0]
        for step in range(1, int(slack // 4) + 1):
            offsets += [4.0 * step, -4.0 * step]
        for offset in offsets:
            middle = x + width / 2 + offset
            sides = middle - room / 2 + 1, y + 2, middle + room / 2 - 1, y + self.box - 2
            is_struck = any(crosses(segment, sides) for segment in self.segments)
            if not is_struck and all(abs(middle - at) > room / 2 + 5 for at in signs):
                return middle
        return None

    def _signs(self, strip: _Strip) -> list[float]:
        """Where signs stand among a row's boxes."""
        spans = strip.row.spans
        return [self.x.at(s.start) for s in spans if s.kind in SIGNS and s.kind != "flag"]

    def _ends(self, link: LaneLink) -> tuple[float, float, float, float]:
        """From the edge of one row's boxes to the edge of the other's."""
        (src, start), (dst, end) = link.src, link.dst
        y1, y2 = self.strips[src].y, self.strips[dst].y
        y1, y2 = (y1 + self.box, y2) if y2 > y1 else (y1, y2 + self.box)
        return self.x.at(start), y1, self.x.at(end), y2

    def _route(self, link: LaneLink) -> list[tuple[float, float]]:
        """Where an arrow runs: a long slant over several rows goes straight to the last gap."""
        x1, y1, x2, y2 = self._ends(link)
        src, dst = link.src[0], link.dst[0]
        if abs(src - dst) < 2 or abs(x2 - x1) < SLANT or link.kind in ("missing", "transfer"):
            return [(x1, y1), (x2, y2)]
        gap = self.pitch - self.box
        return [(x1, y1), (x1, y2 + gap if src > dst else y2 - gap), (x2, y2)]

    def _arrow(self, link: LaneLink) -> None:
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self._route(link))
        kind = f"arrow {css(link.kind)}"
        if link.src[0] == link.dst[0]:  # a bow below it, from inside one box to inside the other
            x1, _, x2, _ = self._ends(link)
            low = self.strips[link.src[0]].y + self.box
            ahead = 9 if x2 - x1 > 1 or link.kind != "copy" else 5
            kind += " level" * (ahead == 5)
            x1, x2 = x1 - 6, max(x2, x1 + 1) + ahead
            d = f"M{x1:.1f} {low:.1f}c0 8 {x2 - x1:.1f} 8 {x2 - x1:.1f} 0"
        if len(self.lanes.links) * 5 > EDGE - self.x.left:
            kind += " faint-arrow"
        self.page.path(kind, d, link.about, link.data)

    def _measure(self, span: LaneItem, y: float) -> None:
        """A stretch above a row, with its length."""
        page, left, right, y = self.page, self.x.at(span.start), self.x.at(span.end), y - 12
        page.line("span", left, y, right, y, span.data)
        page.line("span", left, y - 4, left, y + 4)
        page.line("span", right, y - 4, right, y + 4)
        room = width_of(span.label)
        if room + 8 > right - left:  # beside it
            at = right + 5 if right + 5 + room < EDGE else left - 5 - room
            page.words(at, y + 4, span.label, "small spanned")
            return
        middle = (left + right) / 2
        page.rect("halo", middle - room / 2 - 2, y - 7, room + 4, 14)
        page.words(middle, y + 4, span.label, "small spanned", "middle")


def crosses(
    segment: tuple[float, float, float, float], sides: tuple[float, float, float, float]
) -> bool:
    """Whether a line (x1, y1, x2, y2) runs through a box (left, top, right, bottom)."""
    x1, y1, x2, y2 = segment
    left, top, right, bottom = sides
    enters, leaves = 0.0, 1.0
    for by, room in ((x1 - x2, x1 - left), (x2 - x1, right - x1), (y1 - y2, y1 - top),
                     (y2 - y1, bottom - y1)):  # fmt: skip
        if by == 0 and room < 0:
            return False
        if by < 0:
            enters = max(enters, room / by)
        elif by > 0:
            leaves = min(leaves, room / by)
    return enters < leaves
