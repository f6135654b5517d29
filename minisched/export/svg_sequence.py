"""Life lines on an SVG's page: time runs down, in order.

What is short gets the room that its name needs, and what began before something else stands above.
"""

from __future__ import annotations

from itertools import groupby, pairwise

from .looks import OVER, SIGNS, UNDER, css
from .scene import LaneItem, LaneLink, Lanes
from .svg_page import EDGE, MARGIN, SvgPage, broken, width_of
from .units import ms

HEAD, HIGH, LEAST_BOX, LEAST_GAP = 46, 330, 19, 4  # pixels
LEAST_WIDTH, BETWEEN, BOW = 84, 24, 20  # of a box; beside it; how far an arrow to itself swings out
Place = tuple[float, float, float]  # the middle of a text, its line, and its width


class SequenceDrawing:
    """Bands, life lines, boxes, messages, and then the words."""

    def __init__(self, page: SvgPage, lanes: Lanes) -> None:
        self.page, self.lanes = page, lanes
        self.left = MARGIN + 50.0
        self.pitch = (EDGE - self.left) / max(1, len(lanes.rows))
        self.width = max(0.5 * self.pitch, min(self.pitch - BETWEEN, LEAST_WIDTH))
        self.spans = [(at, span) for at, row in enumerate(lanes.rows) for span in row.spans
                      if span.end > span.start and span.kind not in (*UNDER, *OVER)]  # fmt: skip
        self.y = self._heights(page.top + HEAD + 6)
        self.taken: list[Place] = []  # by words

    def _heights(self, top: float) -> dict[int, float]:
        """A height for every moment at which something begins or ends."""
        lanes, began = self.lanes, dict[int, int]()  # for each end the latest start: it needs most
        moments = {lanes.start, lanes.end, *(s.start for r in lanes.rows for s in r.spans)}
        moments |= {flag.start for flag in lanes.flags}
        moments |= {time for link in lanes.links for _, time in (link.src, link.dst)}
        for _, span in self.spans:
            moments |= {span.start, span.end}
            began[span.end] = max(span.start, began.get(span.end, span.start))
        heights = {lanes.start: top}
        for before, time in pairwise(sorted(moments)):
            gap = max(LEAST_GAP, (time - before) * HIGH / max(1, lanes.end - lanes.start))
            heights[time] = heights[before] + gap
            if time in began:
                heights[time] = max(heights[time], heights[began[time]] + LEAST_BOX)
        return heights

    def x(self, row: int) -> float:
        """The middle of a life line."""
        return self.left + (row + 0.5) * self.pitch

    def draw(self) -> None:
        """Everything, from the back to the front."""
        page, top, bottom = self.page, self.page.top - 4, self.y[self.lanes.end]
        self._lifelines(top, bottom)
        for flag in self.lanes.flags:
            y = self.y[flag.start]
            page.line("axis", self.left - 8, y, EDGE, y)
            page.words(EDGE - 2, y - 4, flag.label, "small told", "end")
        for at, span in self.spans:
            y, height = self.y[span.start], max(1.0, self.y[span.end] - self.y[span.start])
            kind = f"box {css(span.kind)}"
            left = self.x(at) - self.width / 2
            page.rect(kind, left, y, self.width, height, span.about, span.data)
        for at, row in enumerate(self.lanes.rows):
            for span in row.spans:
                if span.kind in SIGNS:
                    left = self.x(at) - self.width / 2 - 6
                    page.sign(span.kind, left, self.y[span.start], span.about, span.data)
        for link in self.lanes.links:
            self._arrow(link)
        for link in self.lanes.links:
            self._told(link)
        for at, span in self.spans:
            self._label(at, span)
        page.top = bottom + 20

    def _lifelines(self, top: float, bottom: float) -> None:
        """A band for neighbours of a group, a name and a line for each row, and times."""
        page, rows = self.page, self.lanes.rows
        for group, together in groupby(range(len(rows)), key=lambda at: rows[at].group):
            mine = [*together]
            left = self.x(mine[0]) - self.pitch / 2 + 3
            width = self.pitch * len(mine) - 6
            page.drawn.append(
                f'<rect class="lane" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{bottom - top + 8:.1f}"/>'
            )
            page.words(left + width / 2, top + 13, group, "small faint", "middle")
        for at, row in enumerate(rows):
            for line, words in enumerate(broken(row.name, self.pitch - 12, bold=True)):
                page.words(self.x(at), top + 29 + 13 * line, words, "bold", "middle")
            page.line("life", self.x(at), top + HEAD + 4, self.x(at), bottom + 6)
        free = top + HEAD + 10
        page.words(self.left - 12, free - 12, "ms", "small faint", "end")
        for time, y in self.y.items():
            if y >= free:
                said = ms(time - self.lanes.start)
                page.words(self.left - 12, y + 4, said, "small faint", "end")
                free = y + 14

    def _ends(self, link: LaneLink) -> tuple[float, float, float, float]:
        """From the edge of one box to the edge of the other."""
        x1, x2, half = self.x(link.src[0]), self.x(link.dst[0]), self.width / 2
        y1, y2 = self.y[link.src[1]], self.y[link.dst[1]]
        if link.src[0] == link.dst[0]:  # of the first life line to the right: left of it are times
            side = half if link.src[0] == 0 else -half
            return x1 + side, y1, x1 + side, y2
        return (x1 + half, y1, x2 - half, y2) if x2 > x1 else (x1 - half, y1, x2 + half, y2)

    def _bow(self, link: LaneLink) -> int:
        """How far to the right an arrow to its own life line swings out."""
        return BOW if link.src[0] == 0 else -BOW

    def _arrow(self, link: LaneLink) -> None:
        x1, y1, x2, y2 = self._ends(link)
        d = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
        if link.src[0] == link.dst[0]:
            y1, y2, far = y1 - 6, y2 + 8, x1 + self._bow(link)
            d = f"M{x1:.1f} {y1:.1f}C{far} {y1:.1f} {far} {y2:.1f} {x1:.1f} {y2:.1f}"
        self.page.path(f"arrow {css(link.kind)}", d, link.about, link.data)

    def _told(self, link: LaneLink) -> None:
        """What a message says, beside the box it leaves; in short where there is less room."""
        x1, y1, x2, y2 = self._ends(link)
        gap = self.pitch - self.width
        if link.src[0] == link.dst[0]:
            bow, room = 0.8 * self._bow(link), gap - 0.8 * BOW
            middle, y = x1 + bow + (room / 2 if bow > 0 else -room / 2), (y1 + y2) / 2 + 5
        else:
            room, middle = gap - 4, x1 + (gap / 2 if x2 > x1 else -gap / 2)
            y = y1 + (y2 - y1) * abs(middle - x1) / abs(x2 - x1) - 4
        for words in (link.words, link.words.replace(" for ", " ").replace(" of ", " ")):
            for low in (y, y - 4):  # above the arrow, or a little higher
                place = middle, low, width_of(words)
                if place[2] <= room and not any(_touch(place, other) for other in self.taken):
                    self.taken.append(place)
                    self.page.words(middle, low, words, "small told", "middle")
                    return

    def _label(self, at: int, span: LaneItem) -> None:
        """What it is, and how long it takes where there is room."""
        top, bottom, room = self.y[span.start], self.y[span.end], self.width - 2
        is_idle = span.kind in ("bubble", "waited")
        lines = [span.label if width_of(span.label, bold=is_idle) <= room else span.brief]
        lines += [f"{ms(span.duration)} ms"] * (bottom - top >= 32 and not is_idle)
        for number, words in enumerate(lines):
            if bottom - top >= 13 and width_of(words, bold=is_idle) <= room:
                y = (top + bottom) / 2 + 4 + 13 * (number - (len(lines) - 1) / 2)
                self.page.said.add(words)
                self.page.words(self.x(at), y, words, f"small in-{css(span.kind)}", "middle")


def _touch(one: Place, other: Place) -> bool:
    """Whether two texts would lie on one another."""
    near = abs(one[0] - other[0]) < (one[2] + other[2]) / 2
    return near and abs(one[1] - other[1]) < 15
