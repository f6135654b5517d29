"""A scene for a terminal of 40 columns or more.

One character is one interval: it shows the kind with the largest share. An item that is too short
for a share gets a character next to its place, if a neighbour can spare one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from textwrap import wrap

from ..core.text import printable
from .looks import MARK, SIGNS, glyph
from .scene import (
    CellGrid,
    Curve,
    LaneItem,
    LaneRow,
    Lanes,
    NodeTree,
    Scene,
    Show,
    axis_of,
)
from .units import exact, tick_step

COLUMNS, LEAST = 100, 40  # the default, and the narrowest legible width
HEIGHTS = " ▁▂▃▄▅▆▇█"
NO_BREAK = "\N{NO-BREAK SPACE}"
NEAR = 6  # cells: the largest distance of a short item from its place
SILENT = ("ghost", "said", "deed", "span", "wall")  # kinds without a place in a row of characters


def to_text(scene: Scene, columns: int = COLUMNS) -> str:
    """Return the whole text; no line is longer than ``columns``.

    Raises:
        ValueError: less than 40 columns.
    """
    if columns < LEAST:
        raise ValueError(f"a picture needs at least {LEAST} columns, but got {columns}.")
    page = _TextSheet(columns, _margin(scene, columns))
    page.write(scene.title)
    page.write(scene.about)
    for part in scene.parts:
        page.lines.append("")
        page.write(f"{part.heading} ({part.note})" if part.note else part.heading)
        for at, item in enumerate(part.shows):
            after = part.shows[at + 1] if at + 1 < len(part.shows) else None
            has_axis = axis_of(item) != axis_of(after)
            page.draw(item, has_axis)
            page.lines += [""] if after and has_axis else []
    page.legend(scene)
    page.lines += [""] * bool(scene.notes)
    for note in scene.notes:
        page.write(note)
    lines = [printable(line.rstrip()) for line in page.lines]
    return "\n".join([*lines, ""]).replace(NO_BREAK, " ")


def _margin(scene: Scene, columns: int) -> int:
    """Return the width of the lanes' names, so parts line up; at most two fifths."""
    shown = [one for part in scene.parts for one in part.shows]
    names = [row.title for one in shown if isinstance(one, Lanes) for row in one.rows]
    names += [_about(one, at) for one in shown if isinstance(one, Curve)
              for at in range(len(one.series))]  # fmt: skip
    return min(max(map(len, names), default=0), max(12, columns * 2 // 5))


class _TextSheet:
    """Collects lines from top to bottom."""

    def __init__(self, columns: int, margin: int) -> None:
        self.columns, self.margin = columns, margin
        self.cells = columns - margin - 2
        self.lines: list[str] = []

    def write(self, line: str, indent: str = "") -> None:
        """Write a line, broken where it is too long."""
        hang = f"{indent}    "
        self.lines += wrap(line, self.columns, initial_indent=indent, subsequent_indent=hang) or [
            ""
        ]

    def lane(self, title: str, drawn: Sequence[str]) -> None:
        """Write a line after its lane's name."""
        self.lines.append(f"{_cut(title, self.margin):>{self.margin}} │{''.join(drawn)}")

    def draw(self, item: Show, has_axis: bool) -> None:
        """Draw one of a part's drawings."""
        match item:
            case Lanes():
                for row in item.rows:
                    self.lane(row.title, draw_row(row, item.start, item.end, self.cells))
                    for it in (one for one in row.spans if one.kind in ("deed", "span")):
                        self.write(f"{it.brief}: {it.label}".lstrip(": "), " " * (self.margin + 2))
                self._moments(item)
            case Curve():
                for at, series in enumerate(item.series):
                    bars = heights(series.values, item.start, item.end, self.cells)
                    self.lane(_about(item, at), bars)
                self._moments(item)
            case CellGrid():
                self._grid(item)
            case NodeTree():
                self._tree(item)
        if has_axis and isinstance(item, Lanes | Curve):
            self.lines += draw_axis(item, self.cells, self.margin + 2)

    def _moments(self, item: Lanes | Curve) -> None:
        """Write a line with the signs of the flags of all rows."""
        if item.flags:
            signs = [
                LaneItem(f.kind if f.kind in SIGNS else "flag", f.start, f.start)
                for f in item.flags
            ]
            self.lane("", draw_row(LaneRow("", signs), item.start, item.end, self.cells))
            said = [f"{f.label} at {exact(f.start)} ms" for f in item.flags if f.label]
            if said and len(said) <= 8:
                self.write("; ".join(said), " " * (self.margin + 2))

    def _grid(self, grid: CellGrid) -> None:
        """Write a line for each row, in several parts where the columns are too wide."""
        margin = min(max([0, *map(len, grid.rows)]), self.columns // 3)
        columns = [
            [name.replace("\n", " "), *(_cell(grid, row, at) for row in range(len(grid.rows)))]
            for at, name in enumerate(grid.columns)
        ]
        room = self.columns - margin
        widths = [min(2 + max(map(len, column)), room) for column in columns]
        first = 0
        while first < len(columns):
            end, used = first, margin
            while end < len(columns) and (end == first or used + widths[end] <= self.columns):
                used += widths[end]
                end += 1
            if first:
                self.lines.append("")
            for row, title in enumerate(["", *grid.rows]):
                cells = (f"{_cut(column[row], width):>{width}}" for column, width in
                         zip(columns[first:end], widths[first:end], strict=True))  # fmt: skip
                self.lines.append(f"{_cut(title, margin):<{margin}}{''.join(cells)}")
            first = end

    def _tree(self, tree: NodeTree) -> None:
        """Write a line for each node, below its parent; ``*`` marks a change."""
        below = tree.below
        if not tree.nodes:
            self.write("  nothing")
        waiting = [("  ", node, node is below[0][-1]) for node in reversed(below.get(0, ()))]
        while waiting:
            indent, node, is_last = waiting.pop()
            words = ", ".join(filter(None, node.lines))
            star = " *" * node.is_changed
            line = f"{indent}{'└' if is_last else '├'}─ {glyph(node.kind)} {words}{star}"
            self.lines.append(_cut(line, self.columns))
            deeper = indent + ("   " if is_last else "│  ")
            children = below.get(node.id, [])
            waiting += [(deeper, child, child is children[-1]) for child in reversed(children)]

    def legend(self, scene: Scene) -> None:
        """Write the meaning of the glyphs that occur; arrows have none."""
        entries = [
            f"{'*' if kind == 'changed' else glyph(kind)}{NO_BREAK}{words.replace(' ', NO_BREAK)}"
            for kind, words in scene.meanings.items()
            if kind not in SILENT and not kind.startswith(("line", "arrow "))
        ]
        if entries:
            self.lines.append("")
            self.lines += wrap("   ".join(entries), self.columns, break_long_words=False)


def draw_row(row: LaneRow, start: int, end: int, cells: int) -> list[str]:
    """Return a row's characters, with labels in the middle of items that have room for them."""
    longest = max(1, end - start)
    edges = [start + cell * longest // cells for cell in range(cells + 1)]

    def touched(item: LaneItem) -> range:
        """Return the cells of an item's time, at least one."""
        first = min(cells - 1, max(0, (item.start - start) * cells // longest))
        return range(first, max(first + 1, min(cells, -(-(item.end - start) * cells // longest))))

    owners, shares = list[LaneItem | None]([None] * cells), [0] * cells
    boxes = [box for box in row.boxes if box.end > max(start, box.start) and box.start < end]
    for box in boxes:
        for cell in touched(box):
            common = min(box.end, edges[cell + 1]) - max(box.start, edges[cell])
            if common > shares[cell]:
                shares[cell], owners[cell] = common, box
    owned = Counter(map(id, owners))
    lost = [box for box in boxes if id(box) not in owned]
    signs = [item for item in row.spans if item.kind in SIGNS and start <= item.start <= end]
    over = dict[int, str]()  # signs, by cell
    alike = dict[tuple[str, int], LaneItem]()  # of several signs of a kind in one cell, the last
    for sign in signs:
        where = sign.kind, touched(sign)[0]
        alike.pop(where, None)
        alike[where] = sign
    for item in (*lost, *alike.values()):  # if a neighbour has a cell to spare
        first = touched(item)[0]
        near = range(max(0, first - NEAR), min(cells, first + NEAR + 1))
        free = [at for at in near if owners[at] is None or owned[id(owners[at])] > 1]
        if item.kind in SIGNS and not free:
            free = [first]
        if free:
            at = min(free, key=lambda cell: (abs(cell - first), cell < first))
            owned[id(owners[at])] -= 1
            if item.kind in SIGNS:
                over[at] = glyph(item.kind)
            else:
                owners[at], owned[id(item)] = item, 1
    drawn = list[str]()
    for _, same in groupby(owners, key=id):
        owner, *more = same
        short = owner.brief or owner.label if owner else ""
        words = short if owner and short != owner.kind and len(short) < len(more) else ""
        fill, room = glyph(owner.kind) if owner else " ", len(more) + 1
        drawn += f"{words:{fill}^{room}}"
    for at, sign_glyph in over.items():
        drawn[at] = sign_glyph
    for item in row.spans:
        if item.kind == "outline":
            first, last = touched(item)[0], max(touched(item)[0] + 2, touched(item)[-1] + 1)
            first = min(first, cells - 2)
            room = last - first
            label = item.label if room > 2 else ""
            drawn[first:last] = f"{label:{MARK}^{room}}"
    return drawn


def heights(values: Iterable[tuple[int, int]], start: int, end: int, cells: int) -> list[str]:
    """Return a number over time as bars; each shows the greatest value of its interval."""
    values = list(values)
    most = max((value for _, value in values), default=0)
    highs, now, after = [0] * cells, 0, 0
    for time, value in [*values, (end, 0)]:
        at = max(0, min((time - start) * cells // max(1, end - start), cells - 1))
        highs[after : at + 1] = [max(now, high) for high in highs[after : at + 1]]
        highs[at] = max(highs[at], value)
        now, after = value, at
    return [HEIGHTS[-(-high * 8 // max(1, most))] for high in highs]


def draw_axis(item: Lanes | Curve, cells: int, margin: int) -> list[str]:
    """Return two lines below rows of ``cells`` characters, with numbers where they have room.

    ``margin`` is the number of characters before the first cell.
    """
    marks, numbers = ["─"] * cells, [" "] * cells
    start, longest, free = item.start, max(1, item.end - item.start), 0
    step = tick_step(longest)
    for time in range(-(-start // step) * step, start + longest + 1, step):
        cell, said = min((time - start) * cells // longest, cells - 1), exact(time)
        marks[cell] = "┴"
        if free <= cell <= cells - len(said):
            numbers[cell : cell + len(said)] = said
            free = cell + len(said) + 1
    unit = item.across if margin >= 2 + len(item.across) else item.across.split()[-1]
    return [
        " " * (margin - 1) + "└" + "".join(marks),
        f"{unit:>{margin - 2}}  " + "".join(numbers).rstrip(),
    ]


def _about(curve: Curve, at: int) -> str:
    """Return a series' name and its greatest value."""
    one = curve.series[at]
    most = max((value for _, value in one.values), default=0)
    return f"{one.name} ≤ {most / curve.scale:g}"


def _cell(grid: CellGrid, row: int, column: int) -> str:
    if (cell := grid.cells.get((row, column))) is None:
        return ""
    return f"{glyph(cell.kind)} {grid.words(row, column)}".rstrip()


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
