"""A scene as an SVG that stands alone, and follows its reader from light to dark.

It brings its own paper, so that it is legible as an ``<img>`` on any page. The same scene gives the
same bytes. Words are placed last, where no arrow runs; what has no such place is drawn over the
arrow with a rim of its box's colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from textwrap import wrap
from xml.sax.saxutils import escape, quoteattr

from .looks import LOOKS, OVER, SIGNS, UNDER, css
from .palette import ARROW_COLOURS, DARK, LIGHT, WAITED, Paper
from .scene import (
    Bars,
    CellGrid,
    Curve,
    Data,
    LaneItem,
    LaneLink,
    LaneRow,
    Lanes,
    NodeTree,
    Part,
    Scene,
    TextTable,
    TreeBox,
)
from .units import exact, ms, tick_step

FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'
WIDTH, MARGIN = 860, 20  # pixels: the page, and what stays free left and right
EDGE = WIDTH - 24
PITCH, BOX = 27, 18  # from lane to lane, and how high a box is
MOST_HIGH = 620  # of lanes; more of them are narrower
CURVE, UPRIGHT = 84, 110  # the height of a curve, of bars that stand
ROOT, LEVEL, LEAF, NODE = 44, 168, 44, 36  # a tree: the root, a level, a leaf's row, a node


def char_width(size: float, bold: bool = False) -> float:
    """About how wide one character is, on the safe side: fonts differ from reader to reader."""
    return size * (0.62 if bold and size < 14 else 0.57)


def width_of(words: str, size: float = 11, bold: bool = False) -> float:
    """About how wide a text is."""
    return len(words) * char_width(size, bold)


def to_svg(scene: Scene) -> str:
    """The picture's text."""
    page = _SvgPage(
        max((_left_of(one) for part in scene.parts for one in part.shows), default=96.0)
    )
    shown = [(part, item) for part in scene.parts for item in part.shows
             if not isinstance(item, TextTable)]  # fmt: skip
    begun: list[Part] = []
    for (part, item), (_, after) in zip(shown, [*shown[1:], (None, None)], strict=True):
        if part not in begun:
            page.heading(part.heading, part.note)
            begun.append(part)
        if isinstance(item, NodeTree) and page.pair(item, part):
            continue
        page.draw(item, getattr(item, "axis", None) != getattr(after, "axis", None))
    page.legend(scene)
    page.notes(scene.notes)
    return page.finish(scene)


class _SvgPage:
    """Collects shapes from top to bottom; ``top`` is where the next part begins."""

    def __init__(self, left: float) -> None:
        self.left = left  # where time begins, in all lanes and curves
        self.drawn: list[str] = []
        self.top = 80.0
        self.said: set[str] = set()  # the labels that are to be read in the picture

    def heading(self, words: str, note: str) -> None:
        """The title of a part, with a quiet note behind it, or below it where it is long."""
        self.top += 4 if self.drawn else 0
        self.words(MARGIN, self.top, words, "run")
        at = MARGIN + width_of(words, 13.5, bold=True) + 18
        if note and at + width_of(note) > EDGE:
            at, self.top = MARGIN, self.top + 17
        self.words(at, self.top, note, "small faint")
        self.top += 14

    def draw(self, item: object, has_axis: bool) -> None:
        """One of the things that a part shows."""
        match item:
            case Lanes(runs_down=True):
                _SequenceDrawing(self, item).draw()
            case Lanes():
                _LanesDrawing(self, item).draw(has_axis)
            case Curve():
                self._curve(item, has_axis)
            case CellGrid():
                self._grid(item)
            case Bars():
                self._upright(item) if item.is_upright else self._bars(item)
            case NodeTree():
                self._tree(item)

    # -- shapes ------------------------------------------------------------------------------------

    def rect(
        self, kind: str, x: float, y: float, width: float, height: float, about: str = "",
        data: Data | None = None,
    ) -> None:  # fmt: skip
        """A box of a kind."""
        hover = f"<title>{escape(about)}</title>" if about else ""
        self.drawn.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" rx="2"{_attributes(data)}>{hover}</rect>'
        )

    def path(self, kind: str, d: str, about: str = "", data: Data | None = None) -> None:
        """Any other outline."""
        hover = f"<title>{escape(about)}</title>" if about else ""
        self.drawn.append(f'<path class="{kind}" d="{d}"{_attributes(data)}>{hover}</path>')

    def line(
        self, kind: str, x1: float, y1: float, x2: float, y2: float, data: Data | None = None
    ) -> None:
        """A straight line."""
        ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.drawn.append(f'<line class="{kind}" {ends}{_attributes(data)}/>')

    def words(
        self, x: float, y: float, words: str, kind: str = "", anchor: str = "start",
        data: Data | None = None,
    ) -> None:  # fmt: skip
        """One line of text."""
        if words:
            looks = f' class="{kind}"' if kind else ""
            where = f' text-anchor="{anchor}"' if anchor != "start" else ""
            self.drawn.append(
                f'<text{looks} x="{x:.1f}" y="{y:.1f}"{where}{_attributes(data)}>'
                f"{escape(words)}</text>"
            )

    def sign(
        self, kind: str, x: float, y: float, about: str = "", data: Data | None = None
    ) -> None:
        """What takes no time, around its middle."""
        self.path(css(kind), f"M{x:.1f} {y:.1f}{SIGNS[kind][0]}", about, data)

    # -- what a part shows, beside lanes -----------------------------------------------------------

    def _curve(self, curve: Curve, has_axis: bool) -> None:
        """Areas on top of one another, and lines over them, in steps."""
        x = TimeScale(curve.start, curve.end, self.left)
        sums: list[tuple[int, int]] = []
        shapes: list[tuple[str, str, list[tuple[int, int]]]] = []
        for one in curve.series:
            values = list(one.values)
            if not one.kind.startswith("line"):
                values = sums = stacked(sums, values)
            shapes.append((one.name, one.kind, values))
        most = max([1, *(value for _, _, values in shapes for _, value in values)])
        self.top += 26
        top, bottom = self.top, self.top + CURVE
        for at in range(0, most + 1, tick_step(most, 4)):
            y = bottom - at * CURVE / most
            self.line("grid" if at else "axis", x.left, y, EDGE, y)
            self.words(x.left - 8, y + 4, f"{at / curve.scale:g}", "small", "end")
        self.words(MARGIN, top - 9, curve.unit, "small faint")
        x.grid(self, top, bottom)
        for name, kind, values in sorted(shapes[::-1], key=lambda shape: "line" in shape[1]):
            d = f"M{x.left:.1f} {bottom:.1f}" + "".join(
                f"H{x.at(time):.1f}V{bottom - value * CURVE / most:.1f}" for time, value in values
            )
            if "line" in kind:
                self.path(kind, f"{d}H{EDGE}", name, {"series": name})
            else:
                self.path(f"box {css(kind)}", f"{d}H{EDGE}V{bottom:.1f}Z", name, {"series": name})
        self.flags(curve.flags, x, top, bottom)
        self.top = bottom + (4 if has_axis else 22)
        if has_axis:
            x.draw(self, curve.across)

    def flags(self, flags: Sequence[LaneItem], x: TimeScale, top: float, bottom: float) -> None:
        """A line at each moment, and its words where they do not reach the next one.

        A stretch has an arrow from its end back to its start, with words above and below it.
        """
        nexts = [x.at(flag.start) for flag in flags[1:]] + [float(EDGE)]
        for flag, room in zip(flags, nexts, strict=False):
            at, until = x.at(flag.start), x.at(flag.end)
            is_sign = flag.kind in SIGNS and flag.kind != "end"
            high = 8 * (flag.end == flag.start)
            kind = "flag" if is_sign else css(flag.kind)
            self.line(kind, at, top - high, at, bottom, {} if is_sign else flag.data)
            if is_sign:
                self.sign(flag.kind, at, top - high, flag.about, flag.data)
            if flag.end > flag.start:
                middle, y = (at + until) / 2, top + 1.5 * PITCH - 4
                if width_of(max(flag.label, flag.brief, key=len), 12, bold=True) < until - at - 6:
                    self.path("saved", f"M{until:.1f} {y}H{at + 2:.1f}")
                    self.line("saved-end", until, y - 6, until, y + 6)
                    self.words(middle, y - 7, flag.label, "bold", "middle")
                    self.words(middle, y + 16, flag.brief, "faint small", "middle")
            elif at + 8 + width_of(flag.label, 11, bold=True) <= room:
                self.words(at + 3 + 4 * is_sign, top - 3, flag.label, "small warn")

    def _grid(self, grid: CellGrid) -> None:
        """A box a cell, under the columns' names, with lines from cell to cell."""
        left = _left(grid.rows)
        width = (EDGE - left) / max(1, len(grid.columns))
        box = (0.94 if not grid.links else 0.72) * width
        pitch = 40 if any(cell.below for cell in grid.cells.values()) else PITCH - 2
        heads = [name.split("\n") for name in grid.columns]
        for at, lines in enumerate(heads):
            for number, words in enumerate(lines):
                x, y = left + at * width + box / 2, self.top + 10 + 13 * number
                self.words(x, y, _cut(words, width + 4), "small faint", "middle")
        top = self.top + 17 + 13 * (max(map(len, heads), default=1) - 1)
        for at, name in enumerate(grid.rows):
            self.words(MARGIN, top + at * pitch + 13, _cut(name, left - 26), "small")
        for link in grid.links:
            (row1, column1), (row2, column2) = link.src, link.dst
            y1, y2 = top + row1 * pitch + 9, top + row2 * pitch + 9
            x1 = left + column1 * width + box
            kind = f"arrow {css(link.kind)}"
            self.line(kind, x1, y1, left + column2 * width, y2, link.data)
        for (row, column), cell in grid.cells.items():
            x, y = left + column * width, top + row * pitch
            data = {**cell.data, "row": row, "column": column}
            changed = " changed" * cell.is_changed
            self.rect(f"box {css(cell.kind)}{changed}", x + 0.5, y, box, BOX, cell.about, data)
            done = x + 0.5
            for kind, share in cell.fills:
                self.rect(f"box {css(kind)}", done, y, share * box, BOX, cell.about)
                done += share * box
            text = _cut(cell.text, box - 2)
            self.words(x + box / 2, y + 13, text, f"small in-{css(cell.kind)}", "middle")
            below = _cut(cell.below, width - 2)
            self.words(x + box / 2, y + BOX + 12, below, "small faint", "middle")
        for (row, column), (row2, _) in grid.walls:
            x, y = left + column * width, top + row * pitch
            if row2 == row:
                self.line("wall", x + 0.97 * width, y - 2, x + 0.97 * width, y + BOX + 2)
            else:
                middle = y + (BOX + pitch) / 2
                self.line("wall", x - 0.03 * width, middle, x + 0.97 * width, middle)
        self.top = top + pitch * len(grid.rows) + 16

    def _bars(self, bars: Bars) -> None:
        """A bar a line from a common left edge, over a scale of its own."""
        left, right = _left([bar.name for bar in bars.bars]), EDGE - 150
        most = max([1, bars.limit, *(sum(part[1] for part in bar.parts) for bar in bars.bars)])
        scale = (right - left) / most
        top = self.top
        for bar in bars.bars:
            x, y = float(left), self.top + (PITCH - BOX) / 2
            self.words(MARGIN, y + 13, _cut(bar.name, left - 30))
            for kind, amount, about, data in bar.parts:
                self.rect(f"box {css(kind)}", x, y, max(1, amount * scale), BOX, about, data)
                if width_of(str(amount)) + 4 <= amount * scale:
                    self.words(x + amount * scale / 2, y + 13, str(amount),
                               f"small in-{css(kind)}", "middle")  # fmt: skip
                x += amount * scale
            room = EDGE - x - 10
            self.words(x + 8, y + 13, _cut(bar.note, room), "small faint")
            self.top += PITCH
        if bars.limit:
            at = left + bars.limit * scale
            self.line("limit", at, top - 2, at, self.top + 2)
        self.line("axis", left, self.top + 2, right, self.top + 2)
        self.words(MARGIN, self.top + 20, bars.unit, "small faint")
        for at in range(0, most + 1, tick_step(most)):
            self.words(left + at * scale, self.top + 20, str(at), "small", "middle")
        self.top += 38

    def _upright(self, bars: Bars) -> None:
        """A column a bar, its name below it; its note above it."""
        left = _left([f"{bars.unit}  "])
        most = max([1, bars.limit, *(sum(part[1] for part in bar.parts) for bar in bars.bars)])
        width = min(40.0, (EDGE - left) / max(1, len(bars.bars)))
        self.top += 24
        bottom = self.top + UPRIGHT
        for at in range(0, most + 1, tick_step(most, 5)):
            y = bottom - at * UPRIGHT / most
            self.line("grid" if at else "axis", left, y, EDGE, y)
            self.words(left - 8, y + 4, str(at), "small", "end")
        self.words(MARGIN, self.top - 9, bars.unit, "small faint")
        last = -100.0
        for at, bar in enumerate(bars.bars):
            x, y = left + at * width, bottom
            for kind, amount, about, data in bar.parts:
                high = amount * UPRIGHT / most
                y -= high
                self.rect(f"box {css(kind)}", x + 1, y, max(1.0, width - 2), high, about, data)
                if high >= 13 and width_of(str(amount)) <= width - 2:
                    ink = f"small in-{css(kind)}"
                    self.words(x + width / 2, y + high / 2 + 4, str(amount), ink, "middle")
            if x + width / 2 - last >= width_of(bar.name) + 6:
                last = x + width / 2
                self.words(last, bottom + 15, bar.name, "small", "middle")
        if bars.limit:
            y = bottom - bars.limit * UPRIGHT / most
            self.line("limit", left, y, EDGE, y)
        self.top = bottom + 32

    def pair(self, tree: NodeTree, part: Part) -> bool:
        """Draw two narrow trees beside one another; gives whether that was done, by now or before.

        The first of them draws both.
        """
        trees = [one for one in part.shows if isinstance(one, NodeTree)]
        if len(trees) != 2 or max(_depth(one) for one in trees) > 3:
            return False
        if tree is trees[0]:
            top, bottoms, room = self.top, list[float](), (EDGE - MARGIN) / 2 - 10
            for at, one in enumerate(trees):
                self.top = top
                self._tree(one, MARGIN + at * (room + 20), room)
                bottoms.append(self.top)
            self.top = max(bottoms)
        return True

    def _tree(self, tree: NodeTree, begin: float = MARGIN, room: float = EDGE - MARGIN) -> None:
        """The root at the left, a box a node, a row a leaf, a parent amid its children."""
        below: dict[int, list[TreeBox]] = {}
        for node in tree.nodes:
            below.setdefault(node.parent, []).append(node)
        level, rows, leaves = {0: 0}, dict[int, float](), 0
        for node in tree.nodes:
            level[node.id] = level[node.parent] + 1
            if node.id not in below:
                rows[node.id], leaves = leaves, leaves + 1
        for at in [*(node.id for node in reversed(tree.nodes)), 0]:
            if at in below:
                rows[at] = sum(rows[child.id] for child in below[at]) / len(below[at])
        pitch = min(LEVEL, (room - ROOT) / max(1, *level.values()))
        self.words(begin, self.top + 12, tree.name, "small bold")
        top = self.top + 16
        places = {
            at: (begin + (ROOT + (level[at] - 1) * pitch if at else 0), top + row * LEAF)
            for at, row in rows.items()
        }
        self.rect("box queued", begin, top + rows.get(0, 0) * LEAF + 7, 33, 22, "the root")
        self.words(begin + 16.5, top + rows.get(0, 0) * LEAF + 22, "root", "small", "middle")
        for node in tree.nodes:
            (x, y), (x0, y0) = places[node.id], places.get(node.parent, (begin, top))
            x0 += pitch - 22 if node.parent else 33
            self.path("link", f"M{x0:.1f} {y0 + 18:.1f}L{x:.1f} {y + 18:.1f}")
            kind = f"box {css(node.kind)}" + " changed" * node.is_changed
            data = {"node": node.id, "panel": tree.name, **node.data}
            self.rect(kind, x, y, pitch - 22, NODE, node.about, data)
            for words, dy, bold in zip(node.lines, (15, 29), (" bold", ""), strict=True):
                words = _cut(words, pitch - 30, bool(bold))
                self.words(x + pitch / 2 - 11, y + dy, words, f"small in-{css(node.kind)}{bold}",
                           "middle")  # fmt: skip
        self.top = top + max(1, leaves) * LEAF + 12

    # -- what is around them -----------------------------------------------------------------------

    def legend(self, scene: Scene) -> None:
        """What kinds mean that occur, and whose meaning is not written on them."""
        x, self.top = float(MARGIN), self.top + 16
        entries = [
            (kind, words)
            for kind, words in scene.meanings.items()
            if not any(label.startswith(words) for label in self.said)
        ]
        if not entries:
            self.top -= 16
        for kind, words in entries:
            room = 26 + width_of(words, 12) + 12
            if x + room > EDGE:
                x, self.top = float(MARGIN), self.top + 22
            self._sample(kind, x, self.top)
            self.words(x + 24, self.top, words)
            x += room
        self.top += 8

    def _sample(self, kind: str, x: float, y: float) -> None:
        """What a kind looks like."""
        if kind in SIGNS:
            self.sign(kind, x + 9, y - 4)
        elif kind.startswith(("arrow ", "line", "wall")):
            self.path(kind, f"M{x:.1f} {y - 4}h19")
        elif kind == "saved":
            self.path(kind, f"M{x + 19:.1f} {y - 4}h-17")
        else:
            shown = kind if kind in (*UNDER, *OVER) else f"box {css(kind)}"
            self.rect("box queued changed" if kind == "changed" else shown, x, y - 10, 18, 12)

    def notes(self, notes: Sequence[str]) -> None:
        """Quiet lines under the drawing, the longer ones broken."""
        for note in notes:
            for words in _broken(note, EDGE - MARGIN):
                self.top += 17
                self.words(MARGIN, self.top, words, "faint")

    def finish(self, scene: Scene) -> str:
        """The whole file."""
        height, drawn = round(self.top + 14), "\n".join(self.drawn)
        head, y = list[str](), 31
        for words in _broken(scene.title, EDGE - MARGIN, 16, bold=True):
            head.append(f'<text class="title" x="{MARGIN}" y="{y}">{escape(words)}</text>')
            y += 20
        for words in _broken(scene.about, EDGE - MARGIN):
            head.append(f'<text class="faint" x="{MARGIN}" y="{y - 1}">{escape(words)}</text>')
            y += 17
        more = y - 68
        body = f'<g transform="translate(0 {more})">\n{drawn}\n</g>' if more else drawn
        height += more
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
                f'width="{WIDTH}" height="{height}" role="img">',
                f"<title>{escape(scene.title)}</title>",
                style_of(drawn),
                f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" '
                'rx="8"/>',
                *head,
                body,
                "</svg>",
                "",
            ]
        )


@dataclass(frozen=True)
class TimeScale:
    """Nanoseconds to pixels."""

    start: int
    end: int
    left: float
    right: float = EDGE

    def at(self, time: int) -> float:
        """Where a moment lies, kept inside."""
        inside = min(max(time, self.start), self.end) - self.start
        return self.left + inside * (self.right - self.left) / max(1, self.end - self.start)

    @property
    def ticks(self) -> range:
        """The moments that get a number."""
        step = tick_step(max(1, self.end - self.start))
        return range(-(-self.start // step) * step, self.end + 1, step)

    def grid(self, page: _SvgPage, top: float, bottom: float) -> None:
        """A faint line at every tick."""
        for at in self.ticks:
            page.line("grid", self.at(at), top, self.at(at), bottom)

    def draw(self, page: _SvgPage, words: str = "time in ms") -> None:
        """The axis below what has been drawn, in milliseconds or whatever ``words`` say."""
        y = page.top
        page.line("axis", self.left, y, self.right, y)
        page.words(MARGIN, y + 18, words, "small faint")
        for at in self.ticks:
            page.line("axis", self.at(at), y, self.at(at), y + 5)
            page.words(self.at(at), y + 18, exact(at), "small", "middle")
        page.top += 40


@dataclass
class _Strip:
    """Where a row lies."""

    row: LaneRow
    y: float  # the upper edge of its boxes
    said: float = 0.0  # how far the words below it reach
    numbered: float = -99.0  # where the last number of a frame stands


class _LanesDrawing:
    """Lanes on a page: backgrounds and grid, boxes, arrows, and then the words."""

    def __init__(self, page: _SvgPage, lanes: Lanes) -> None:
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
            y += self.pitch
        self.bottom = y - (self.pitch - self.box) / 2
        segments = (self._segment(link) for link in lanes.links)
        self.segments = [segment for segment in segments if segment]

    def draw(self, has_axis: bool) -> None:
        """Everything, from the back to the front."""
        page, group = self.page, ""
        for strip in self.strips:
            self._background(strip, is_first=strip.row.group != group)
            group = strip.row.group
        self.x.grid(page, self.top, self.bottom)
        spans = [(span, strip) for strip in self.strips for span in strip.row.spans]
        for span, strip in sorted(spans, key=lambda pair: pair[0].kind != "both"):
            self._shape(span, strip)
        for link in self.lanes.links:
            self._arrow(link)
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
            self.x.draw(page)

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
        name = _cut(row.name, room)
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
            self.page.words(left, y, _cut(words, left - self.x.left), "small", "end")

    def _label(self, span: LaneItem, strip: _Strip) -> None:
        """As much as fits, where no arrow runs and no sign stands, if there is such a place."""
        y = strip.y
        x, width = self.x.at(span.start), self.x.at(span.end) - self.x.at(span.start)
        if span.kind == "said":
            room = width_of(span.label, 11, bold=True)
            middle = min(max(x + width / 2, self.x.left + room / 2), EDGE - room / 2)
            if middle - room / 2 >= strip.said:  # else the words are in the notes alone
                strip.said = middle + room / 2 + 6
                low = y + self.box + 9
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

    def _segment(self, link: LaneLink) -> tuple[float, float, float, float] | None:
        return None if link.src[0] == link.dst[0] else self._ends(link)

    def _arrow(self, link: LaneLink) -> None:
        x1, y1, x2, y2 = self._ends(link)
        d = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
        kind = f"arrow {css(link.kind)}"
        if link.src[0] == link.dst[0]:  # a bow below it, from inside one box to inside the other
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


# -- Life lines: time runs down, in order; what is short gets the room that its name needs ---------

HEAD, HIGH, LEAST_BOX, LEAST_GAP = 46, 330, 19, 4  # pixels
LEAST_WIDTH, BETWEEN, BOW = 84, 24, 20  # of a box; beside it; how far an arrow to itself swings out
Place = tuple[float, float, float]  # the middle of a text, its line, and its width


class _SequenceDrawing:
    """Bands, life lines, boxes, messages, and then the words."""

    def __init__(self, page: _SvgPage, lanes: Lanes) -> None:
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
        """A band for each group, a name and a line for each row, and times as they fit."""
        page, rows = self.page, self.lanes.rows
        for group in dict.fromkeys(row.group for row in rows):
            mine = [at for at, row in enumerate(rows) if row.group == group]
            left = self.x(mine[0]) - self.pitch / 2 + 3
            width = self.pitch * len(mine) - 6
            page.drawn.append(
                f'<rect class="lane" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" '
                f'height="{bottom - top + 8:.1f}"/>'
            )
            page.words(left + width / 2, top + 13, group, "small faint", "middle")
        for at, row in enumerate(rows):
            for line, words in enumerate(wrap(row.name, int(self.pitch / char_width(12)))):
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
        if link.src[0] == link.dst[0]:
            return x1 - half, y1, x1 - half, y2
        return (x1 + half, y1, x2 - half, y2) if x2 > x1 else (x1 - half, y1, x2 + half, y2)

    def _arrow(self, link: LaneLink) -> None:
        x1, y1, x2, y2 = self._ends(link)
        d = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
        if link.src[0] == link.dst[0]:
            y1, y2 = y1 - 6, y2 + 8
            d = f"M{x1:.1f} {y1:.1f}C{x1 - BOW} {y1:.1f} {x1 - BOW} {y2:.1f} {x1:.1f} {y2:.1f}"
        self.page.path(f"arrow {css(link.kind)}", d, link.about, link.data)

    def _told(self, link: LaneLink) -> None:
        """What a message says, beside the box it leaves; in short where there is less room."""
        x1, y1, x2, y2 = self._ends(link)
        gap = self.pitch - self.width
        if link.src[0] == link.dst[0]:
            room = gap - 0.8 * BOW
            middle, y = x1 - 0.8 * BOW - room / 2, (y1 + y2) / 2 + 5
        else:
            room, middle = gap - 4, x1 + (gap / 2 if x2 > x1 else -gap / 2)
            y = y1 + (y2 - y1) * abs(middle - x1) / abs(x2 - x1) - 4
        for words in (link.words, link.words.replace(" for ", " ").replace(" of ", " ")):
            place = middle, y, width_of(words)
            if place[2] <= room and not any(_touch(place, other) for other in self.taken):
                self.taken.append(place)
                self.page.words(middle, y, words, "small told", "middle")
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
    return near and abs(one[1] - other[1]) < 11


# -- The style sheet: only what occurs, for light and for dark paper -------------------------------

TEXTURES = {
    "stripes": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6" class="texture"/>',
    "dots": '<circle cx="2" cy="2" r="1" class="texture-dot"/>'
    '<circle cx="6" cy="6" r="1" class="texture-dot"/>',
    "cross": '<path d="M-2 2L2 -2M0 8L8 0M6 10L10 6M-2 6L2 10M0 0L8 8M6 -2L10 2" class="cross"/>',
    "hatch": '<path d="M-2 6L2 10M0 0L8 8M6 -2L10 2" class="hatch"/>',
}
PLAIN = [  # (a class that must occur; empty: always, the rule)
    ("", f"text {{ font: 12px {FONT}; fill: var(--ink) }}"),
    ("", ".title { font-size: 16px; font-weight: 650 }"),
    ("", ".run { font-size: 13.5px; font-weight: 650 }"),
    ("", ".faint { fill: var(--faint) } .small { font-size: 11px } .bold { font-weight: 650 }"),
    ("", ".paper { fill: var(--paper); stroke: var(--grid) } .lane { fill: var(--lane) }"),
    ("", ".grid { stroke: var(--grid) } .axis { stroke: var(--faint) }"),
    ("box", ".box { stroke: var(--gap); stroke-width: 1 } .box.thin { stroke: none }"),
    ("arrow", ".arrow { fill: none; stroke-width: 1.4 }"),
    ("faint-arrow", ".faint-arrow { stroke-width: .6; opacity: .5; marker-end: none !important }"),
    ("both", ".both { fill: var(--token); opacity: .17 }"),
    ("outline", ".outline { fill: none; stroke: var(--wrong); stroke-width: 3 } "
                ".disc { fill: var(--wrong) } .on-disc { fill: var(--paper); font-weight: 700 }"),
    ("ghost", ".ghost { fill: none; stroke: var(--wrong); stroke-width: 1.5; "
              "stroke-dasharray: 3 3 }"),
    ("halo", ".halo { fill: var(--paper) }"),
    ("said", ".said { fill: var(--wrong); font-weight: 650; stroke: var(--paper); "
             "stroke-width: 3px; paint-order: stroke }"),
    ("life", ".life { stroke: var(--faint); stroke-dasharray: 4 4 }"),
    ("told", ".told { stroke: var(--lane); stroke-width: 3px; paint-order: stroke }"),
    ("span", ".span { stroke: var(--token); stroke-width: 1.2 } .spanned { fill: var(--token) }"),
    ("saved", ".saved, .saved-end { stroke: var(--ink); stroke-width: 1.2; fill: none }"),
    ("end", ".end { stroke: var(--ink); stroke-width: 1.4; stroke-dasharray: 3 3 }"),
    ("line", ".line { fill: none; stroke: var(--ink); stroke-width: 1.6 } "
             ".line.second { stroke-dasharray: 5 3; stroke: var(--bubble) } "
             ".line.third { stroke: var(--token) }"),
    ("limit", ".limit { stroke: var(--bubble); stroke-width: 1.8; stroke-dasharray: 6 3 }"),
    ("flag", ".flag { stroke: var(--bubble); fill: var(--bubble); stroke-width: 1.4 }"),
    ("flag-head", ".flag-head { fill: var(--bubble); stroke: var(--paper) }"),
    ("lapped", ".lapped { fill: var(--bubble) }"),
    ("warn", ".warn { fill: var(--bubble); font-weight: 650 }"),
    ("evict", ".evict { fill: none; stroke: var(--bubble); stroke-width: 2 }"),
    ("read", ".read { fill: var(--paper); stroke: var(--ink); stroke-width: 1.2 }"),
    ("link", ".link { fill: none; stroke: var(--faint); stroke-width: 1.2 }"),
    ("wall", ".wall { stroke: var(--ink); stroke-width: 2.6; stroke-linecap: round }"),
    ("changed", ".box.changed { stroke: var(--ink); stroke-width: 2.4; stroke-dasharray: none }"),
    ("missing", ".arrow.missing { stroke: var(--wrong); stroke-width: 2.2; "
                "stroke-dasharray: 6 4; marker-end: url(#head-wrong) }"),
]  # fmt: skip
INKS = {"bubble": "var(--bubble)", "waited": "var(--waited)", "wait": "var(--faint)"}


def style_of(drawn: str) -> str:
    """Style sheet, textures and arrow heads, as far as ``drawn`` uses them."""
    words = {
        word for piece in drawn.split('class="')[1:] for word in piece.split('"', 1)[0].split()
    }
    words |= {word.removeprefix("in-") for word in words}
    kinds = [kind for kind in LOOKS if css(kind) in words]
    arrows = [kind for kind in ARROW_COLOURS if kind in words]
    arrows += ["wrong"] * ("missing" in words and "wrong" not in words)
    textures = {texture for kind in kinds if (texture := LOOKS[kind].texture)}
    rules = [rule for name, rule in PLAIN if not name or name in words]
    rules += [_box_rule(kind) for kind in kinds]
    rules += [f".arrow.{kind} {{ stroke: var(--{kind}); marker-end: url(#head-{kind}) }}"
              for kind in arrows]  # fmt: skip
    if "level" in words:
        rules.append(".arrow.level { marker-end: none }")
    if {"stripes", "dots"} & textures:
        rules.append(".texture { stroke: #1A1A1A; stroke-width: 1; opacity: .45; fill: none }")
        rules.append(".texture-dot { fill: #1A1A1A; opacity: .5 }")
    if "cross" in textures or "hatch" in textures:
        rules.append(".cross, .hatch { stroke: var(--bubble); stroke-width: 1.1; opacity: .6; "
                     "fill: none }")  # fmt: skip
    if "stale" in words:
        rules.append("#of-stale .texture-dot { fill: var(--faint); opacity: 1 }")
    if "waited" in words:
        rules.append("#of-waited .hatch { stroke: var(--waited) }")
    if "saved" in words:
        rules.append(".saved { marker-end: url(#head-ink) }")
        arrows.append("ink")
    heads = "".join(
        f'<marker id="head-{kind}" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="7" '
        'markerHeight="7" markerUnits="userSpaceOnUse" orient="auto">'
        f'<path style="fill:var(--{kind})" d="M0 0.6L8 4L0 7.4z"/></marker>'
        for kind in arrows
    )
    patterns = "".join(_pattern(kind) for kind in kinds if LOOKS[kind].texture)
    rules.append(variables())
    defs = f"<defs>{patterns}{heads}</defs>" if patterns or heads else ""
    return "<style>\n" + "\n".join(rules) + f"\n</style>\n{defs}".rstrip("\n")


def variables() -> str:
    """The colours as CSS variables, for light and for dark paper."""
    light, dark = _variables(LIGHT, 0), _variables(DARK, 1)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


def _variables(paper: Paper, which: int) -> str:
    colours = {
        "paper": paper.background, "ink": paper.ink, "faint": paper.faint_ink, "grid": paper.grid,
        "lane": paper.lane, "gap": paper.gap, "bubble": paper.bubble, "waited": WAITED[which],
        **{kind: pair[which] for kind, pair in ARROW_COLOURS.items()},
    }  # fmt: skip
    return "; ".join(f"--{name}: {colour}" for name, colour in colours.items())


def _box_rule(kind: str) -> str:
    has, name = LOOKS[kind], css(kind)
    fill = f"url(#of-{name})" if has.texture else has.fill or "var(--paper)"
    border = ""
    if not has.fill:
        line = INKS.get(kind, "var(--bubble)" if kind == "lacking" else "var(--faint)")
        line = "none" if kind == "stale" else line
        dash = "" if kind in ("bubble", "waited", "lacking") else "; stroke-dasharray: 3 2"
        border = f"; stroke: {line}{dash}"
    ink = has.text if has.fill else INKS.get(kind, "var(--ink)")
    bold = "; font-weight: 650" if kind in ("bubble", "waited") else ""
    rim = f"; stroke: {has.fill or 'var(--paper)'}; stroke-width: 3px; paint-order: stroke"
    rim += "; stroke-linejoin: round"  # or letters such as w have spikes
    return f".box.{name} {{ fill: {fill}{border} }} text.in-{name} {{ fill: {ink}{bold}{rim} }}"


def _pattern(kind: str) -> str:
    has, name = LOOKS[kind], css(kind)
    ground = f'fill="{has.fill}"' if has.fill else 'class="halo" style="fill:var(--paper)"'
    return (
        f'<pattern id="of-{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" {ground}/>{TEXTURES[has.texture]}</pattern>'
    )


# -- Small things ----------------------------------------------------------------------------------


def _attributes(data: Data | None) -> str:
    items = data.items() if data else ()
    return "".join(f" data-{name}={quoteattr(str(value))}" for name, value in items)


def _left_of(item: object) -> float:
    """How much room the names of rows need, if time runs beside them."""
    if isinstance(item, Curve):
        return _left([f"{item.unit}  "])
    if not isinstance(item, Lanes):
        return 96.0
    left = _left([f"{row.name}  {row.note}" for row in item.rows])
    groups = [max(row.group, row.group_note, key=len) for row in item.rows if row.group]
    return min(300.0, left + _left(groups) - 40 if groups else left)


def _left(names: Sequence[str]) -> float:
    """Where drawing begins, right of the longest name."""
    longest = max((width_of(name, 12) for name in names), default=0.0)
    return min(300.0, max(96.0, round(MARGIN + longest + 12)))


def _cut(words: str, room: float, bold: bool = False, size: float = 11) -> str:
    """As much of a text as there is room for; nothing where that is less than two characters."""
    most = int(room / char_width(size, bold))
    return words if len(words) <= most else "" if most < 2 else words[: most - 1] + "…"


def _broken(words: str, room: float, size: float = 12, bold: bool = False) -> Iterator[str]:
    """Lines that fit."""
    yield from wrap(words, int(room / char_width(size, bold))) or [""]


def _depth(tree: NodeTree) -> int:
    """Levels below the root."""
    level = {0: 0}
    for node in tree.nodes:
        level[node.id] = level[node.parent] + 1
    return max(level.values())


def stacked(
    below: Sequence[tuple[int, int]], above: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The sum of two series of (time, value)."""
    sums, values = dict[int, int](), [0, 0]
    for time, which, value in sorted([(t, 0, v) for t, v in below] + [(t, 1, v) for t, v in above]):
        values[which] = value
        sums[time] = sum(values)
    return list(sums.items())


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
