"""Lanes on an SVG's page: backgrounds and grid, boxes, arrows, and then the words.

Words are placed last, where no arrow runs. Words without such a place are drawn over the arrow,
with a rim of their box's colour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from .looks import OVER, PHASES, SIGNS, css, look
from .scene import LaneItem, LaneLink, LaneRow, Lanes
from .svg_page import SvgPage, TimeScale, cut, width_of
from .svg_style import MARGIN

SLANT = 30  # pixels to the side: a longer arrow over several rows has a bend
ASIDE = 8  # pixels between two places that are tried for a number, or for words below a box
PHRASE = 16  # pixels from one phrase to the next
NARROW = 600  # pixels of a page on which the name of a group stands above its rows
PADDING = 2.5  # pixels: the least room left and right of words in a box
MOST_HIGH = 740  # pixels of all lanes; more lanes are narrower


@dataclass
class _Strip:
    """The place of a row."""

    row: LaneRow
    y: float  # the upper edge of its boxes
    group: str  # the group's name, on its first row
    said: float = 0.0  # the right end of the words below it
    numbers: list[float] = field(default_factory=list)  # the places of its frames' numbers
    deeds: int = 0  # phrases below it that are drawn
    names: list[tuple[float, float]] = field(default_factory=list)  # words between its boxes


class LanesDrawing:
    """Lanes on a page, from the back to the front."""

    def __init__(self, page: SvgPage, lanes: Lanes) -> None:
        self.page, self.lanes = page, lanes
        self.sheet = sheet = page.sheet
        self.x = TimeScale(lanes.start, lanes.end, page.left, sheet.edge)
        self.is_narrow = sheet.width < NARROW
        self.pitch = min(sheet.pitch, max(9, MOST_HIGH / max(1, len(lanes.rows))))
        self.gap = sheet.gap if self.pitch > 16 else 2
        self.box = self.pitch - self.gap
        self.middle = self.box / 2 + round(0.36 * sheet.small)  # the line of words in a box
        moments = [flag.start for flag in lanes.flags if flag.end == flag.start]
        self.top = page.top + 14 * bool(moments)
        self.strips = list(self._stacked())
        self.segments = [
            (*start, *end)
            for link in lanes.links
            if link.src[0] != link.dst[0]
            for start, end in pairwise(self._route(link))
        ]

    def _stacked(self) -> Iterator[_Strip]:
        """Yield a strip for each row, with room for the items above and below it."""
        y, before = self.top + self.gap / 2, ""
        rows = self.lanes.rows
        for at, row in enumerate(rows):
            kinds = [item.kind for item in row.spans]
            y += 8 if at and row.group != before else 0
            y += 22 if self.is_narrow and row.group not in ("", before) else 0
            is_numbered = any(item.kind == "outline" and item.label for item in row.spans)
            y += 13 if is_numbered or "span" in kinds else 0  # its number or words stand above
            yield _Strip(row, y, row.group if row.group != before else "")
            before = row.group
            y += self.pitch + 10 * ("said" in kinds) + PHRASE * kinds.count("deed")
        self.bottom = y - self.gap / 2 + 7 * any(map(self._is_bow_named, self.lanes.links))

    def _is_bow_named(self, link: LaneLink) -> bool:
        """Return whether an arrow is a token's bow below a lane that has no legend."""
        is_token = link.kind == "token" and "arrow token" not in self.page.scene.legend
        return is_token and link.src[0] == link.dst[0] == len(self.lanes.rows) - 1

    def draw(self, has_axis: bool) -> None:
        """Draw all lanes."""
        page = self.page
        for strip in self.strips:
            self._background(strip)
        self.x.grid(page, self.top, self.bottom)
        page.flags(self.lanes.flags, self.x, self.top, self.bottom)  # its lines pass behind boxes
        items = [(item, strip) for strip in self.strips for item in strip.row.spans]
        below = [pair for pair in items if pair[0].kind not in OVER]  # arrows run above these
        for item, strip in below:
            self._shape(item, strip)
        for link in self.lanes.links:
            self._arrow(link)
        for item, strip in items:
            if item.kind in OVER:
                self._over(item, strip)
        for item, strip in items:
            if item.kind not in (*SIGNS, *OVER) and self.box >= 11:
                self._label(item, strip)
        for strip in self.strips:
            row = strip.row
            if row.tail and row.spans:
                ends = [self.x.at(at) for item in row.spans for at in (item.start, item.end)]
                page.beside(min(ends), max(ends), strip.y + self.middle, row.tail, "small")
        page.top = self.bottom + (8 if has_axis else 20)
        if has_axis:
            self.x.draw(page, self.lanes.across)

    def _background(self, strip: _Strip) -> None:
        page, row, left = self.page, strip.row, self.x.left
        page.rect("lane", left, strip.y - 3, self.sheet.edge - left, self.box + 6)
        if self.pitch < 12 and self.strips.index(strip) % 5:
            return
        y = strip.y + self.middle
        if row.group and self.is_narrow:
            name = cut(row.name, left - MARGIN - 6, self.sheet.small)
            page.words(left - 6, y, name, "small faint", "end")
            if strip.group:
                page.words(MARGIN, strip.y - 10, row.group, "bold")
                at = MARGIN + width_of(row.group, self.sheet.text, bold=True) + 10
                page.words(at, strip.y - 10, row.group_note, "small faint")
            return
        if row.group:
            page.words(left - 8, y, row.name, "small faint", "end")
            if strip.group:
                page.words(MARGIN, y, row.group, "bold")
                page.words(MARGIN, y + self.sheet.small + 4, row.group_note, "small faint")
            return
        name = cut(row.name, left - MARGIN - 8, self.sheet.small)
        page.words(MARGIN, y, name, "small" if self.pitch < 16 else "")
        at = MARGIN + width_of(name, self.sheet.text) + 7
        if at + width_of(row.note, self.sheet.small) <= left - 4:
            page.words(at, y, row.note, "small faint")

    def _shape(self, item: LaneItem, strip: _Strip) -> None:
        """Draw a box or a sign."""
        page, x, y = self.page, self.x.at(item.start), strip.y
        width = self.x.at(item.end) - x
        if item.kind in SIGNS:
            at = y - 1 if item.kind == "flag" else y + self.box / 2
            page.sign(item.kind, x, at, item.about, item.data)
        else:
            kind = f"box {look_of(item)}" + " thin" * (width <= 4)
            least = 1.0 if item.end > item.start else 3.0
            x = min(x, self.sheet.edge - least) if item.end == item.start else x
            page.rect(kind, x, y, max(least, width), self.box, item.about, item.data)

    def _over(self, item: LaneItem, strip: _Strip) -> None:
        """Draw a frame with its number, a ghost, or words below their item."""
        page, x, y = self.page, self.x.at(item.start), strip.y
        width = max(3, self.x.at(item.end) - x)
        if item.kind == "ghost":
            page.rect("ghost", x, y + 1, width, self.box - 2, item.about)
            self._name_beside(item, strip)
        elif item.kind == "outline":
            if item.end == item.start:  # around a sign
                x, width = x - 6, 12
            page.rect("outline", x - 1, y - 1, width + 2, self.box + 2, item.about, item.data)
            if item.label:
                middle = self._free(x, width, y - 17, y - 1, 16, strip.numbers)
                strip.numbers.append(middle)
                self._disc(middle, y - 9, item.label)
        elif item.kind == "span":
            page.path("span", f"M{x:.1f} {y - 3}v-8h{width:.1f}v8", item.about, item.data)
            page.beside(x, x + width, y - 6, item.label, "small warn")
        elif item.kind == "deed":
            strip.deeds += 1
            self._phrase(item, y + self.box + PHRASE * strip.deeds)
        else:
            room = width_of(item.label, self.sheet.small, bold=True)
            low = y + self.box + 15
            taken = [strip.said - room / 2] if strip.said else []
            middle = self._free(x + width / 2 - room / 2, room, low - 10, low + 1, room, taken)
            if middle - room / 2 >= strip.said:  # otherwise only the notes contain the words
                strip.said = middle + room / 2 + 6
                page.words(middle, low, item.label, "small said", "middle", item.data)

    def _disc(self, x: float, y: float, number: str) -> None:
        """Draw a number on a red disc around (x, y)."""
        self.page.drawn.append(f'<circle class="disc" cx="{x:.1f}" cy="{y:.1f}" r="8"/>')
        self.page.words(x, y + 4, number, "small on-disc", "middle")

    def _phrase(self, item: LaneItem, y: float) -> None:
        """Draw the phrase of a number, from its item's start, or up to its end at the right."""
        x, until = self.x.at(item.start), self.x.at(item.end)
        room = 22 + width_of(item.label, self.sheet.small, bold=True)
        left = x if x + room <= self.sheet.edge else max(self.x.left, until - room)
        self._disc(left + 8, y - 4, item.brief)
        self.page.words(left + 22, y, item.label, "small deed")
        self.page.said.add(item.label)

    def _free(
        self, x: float, width: float, top: float, bottom: float, room: float, taken: list[float]
    ) -> float:
        """Return the middle for something ``room`` wide near a box: without arrows, if possible.

        ``taken`` are the middles of others of its kind.
        """
        least, most = self.x.left + room / 2, self.sheet.edge - room / 2
        first = x + room / 2 if room <= width else x + width / 2
        aside = [0.0, *(by * ASIDE * side for by in range(1, 12) for side in (1, -1))]
        places = [min(max(first + by, least), most) for by in aside]
        away = [at for at in places if all(abs(at - other) > room for other in taken)]
        for at in away:
            sides = at - room / 2, top, at + room / 2, bottom
            if not any(crosses(one, sides) for one in self.segments):
                return at
        return (away or places)[0]

    def _label(self, item: LaneItem, strip: _Strip) -> None:
        """Draw as much of a label as fits, where no arrow runs, if there is such a place."""
        places = self._places(item, strip)
        first = next(places, None)
        step = str(item.data.get("step", ""))
        is_bare = first is None or (first[0] == step and item.brief == "launch")
        is_named = item.kind.startswith("step ") or (item.brief.isalpha() and not item.is_quiet)
        if is_named and is_bare and self._name_beside(item, strip):
            return
        if first:
            rest = (place for place in places if not place[2])
            words, middle, is_struck = next(rest, first) if first[2] else first
            if is_struck and item.kind in ("bubble", "waited"):
                return  # its hatching shows the same
            self.page.said.add(words)
            kind = f"small in-{look_of(item)}"
            is_bold, y = item.kind in ("bubble", "waited"), strip.y + self.middle
            self.page.label(middle, y, words, look_of(item).replace("-", " "), kind, is_bold)

    def _name_beside(self, item: LaneItem, strip: _Strip) -> bool:
        """Draw a narrow box's label, or its verb, on the free lane beside it, if there is room."""
        x, until = self.x.at(item.start), self.x.at(item.end)
        boxes = [(self.x.at(one.start), self.x.at(one.end)) for one in strip.row.spans]
        for words in dict.fromkeys((item.label, item.brief)):
            room = width_of(words, self.sheet.small) + 8
            for left in (until, x - room):
                sides = left, strip.y + 2, left + room, strip.y + self.box - 2
                is_free = self.x.left <= left and left + room <= self.sheet.edge
                taken = [*boxes, *strip.names]
                is_free &= not any(start < left + room and left < end for start, end in taken)
                if is_free and not any(crosses(one, sides) for one in self.segments):
                    y = strip.y + self.middle
                    self.page.words(left + room / 2, y, words, "small", "middle")
                    strip.names.append((left, left + room))
                    self.page.said.add(words)
                    return True
        return False

    def _places(self, item: LaneItem, strip: _Strip) -> Iterator[tuple[str, float, bool]]:
        """Yield places for words without signs or arrows, nearest to the middle first.

        An arrow may cross the middle itself; the third value is whether one does.
        """
        x, width = self.x.at(item.start), self.x.at(item.end) - self.x.at(item.start)
        signs = [
            self.x.at(s.start) for s in strip.row.spans if s.kind in SIGNS and s.kind != "flag"
        ]
        brief = "" if item.is_quiet and item.kind in PHASES else item.brief
        step = str(item.data.get("step", "")) if item.kind.startswith("step ") else ""
        is_bold = item.kind in ("bubble", "waited")  # its number alone is short
        step = brief.partition(" ")[0] if is_bold else step
        for words in filter(None, dict.fromkeys((item.label, brief, step))):
            room = width_of(words, self.sheet.small, is_bold) + 2 * PADDING
            if room > width:
                continue
            steps = [4.0 * step for step in range(1, int((width - room) / 8) + 1)]
            for aside in (0.0, *(by for step in steps for by in (step, -step))):
                middle = x + width / 2 + aside
                if all(abs(middle - at) > room / 2 + 5 for at in signs):
                    left, right = middle - room / 2 + 1, middle + room / 2 - 1
                    sides = left, strip.y + 2, right, strip.y + self.box - 2
                    is_struck = any(crosses(one, sides) for one in self.segments)
                    if not (is_struck and aside):
                        yield words, middle, is_struck

    def _ends(self, link: LaneLink) -> tuple[float, float, float, float]:
        """Return an arrow's ends, at the edges of both rows' boxes."""
        (src, start), (dst, end) = link.src, link.dst
        y1, y2 = self.strips[src].y, self.strips[dst].y
        y1, y2 = (y1 + self.box, y2) if y2 > y1 else (y1, y2 + self.box)
        return self.x.at(start), y1, self.x.at(end), y2

    def _route(self, link: LaneLink) -> list[tuple[float, float]]:
        """Return an arrow's points: a long slant over rows runs straight to the last gap."""
        x1, y1, x2, y2 = self._ends(link)
        src, dst = link.src[0], link.dst[0]
        if abs(src - dst) < 2 or abs(x2 - x1) < SLANT or link.kind in ("missing", "transfer"):
            return [(x1, y1), (x2, y2)]
        return [(x1, y1), (x1, y2 + self.gap if src > dst else y2 - self.gap), (x2, y2)]

    def _arrow(self, link: LaneLink) -> None:
        d = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in self._route(link))
        kind = f"arrow {css(link.kind)}"
        if link.src[0] == link.dst[0]:  # a bow below the lane, from box to box
            x1, _, x2, _ = self._ends(link)
            low = self.strips[link.src[0]].y + self.box
            ahead = 9 if x2 - x1 > 1 or link.kind != "copy" else 5
            kind += " level" * (ahead == 5)
            x1, x2 = x1 - 6, max(x2, x1 + 1) + ahead
            d = f"M{x1:.1f} {low:.1f}c0 8 {x2 - x1:.1f} 8 {x2 - x1:.1f} 0"
            if self._is_bow_named(link):
                self.page.words(x2 + 5, low + self.sheet.small, "token", "small")
        if len(self.lanes.links) * 5 > self.sheet.edge - self.x.left:
            kind += " faint-arrow"
        self.page.path(kind, d, link.about, link.data)


def look_of(item: LaneItem) -> str:
    """Return the class of an item's look: grey for a quiet one that has a colour."""
    return "other" if item.is_quiet and look(item.kind).fill else css(item.kind)


def crosses(
    segment: tuple[float, float, float, float], sides: tuple[float, float, float, float]
) -> bool:
    """Return whether a line (x1, y1, x2, y2) crosses a box (left, top, right, bottom)."""
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
