"""A scene as a self-contained SVG that follows its reader from light to dark.

It has its own paper, so it is legible as an ``<img>`` on any page. The same scene gives the same
bytes. ``svg_lanes`` draws lanes, and this file draws everything else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

from .looks import css
from .scene import CellGrid, Curve, Lanes, NodeTree, Scene, Show, axis_of
from .svg_lanes import NARROW, LanesDrawing
from .svg_page import SvgPage, TimeScale, cut, said_of, width_of
from .svg_style import DESK, MARGIN, Sheet
from .units import tick_step

CURVE = 84  # the height of a curve
ROOT, LEVEL, LEAF, NODE = 44, 168, 44, 36  # a tree: the root, a level, a leaf's row, a node


def to_svg(scene: Scene, sheet: Sheet = DESK) -> str:
    """Return the picture's text, in the sizes of a sheet (``svg_style.py``)."""
    shown = [one for part in scene.parts for one in part.shows]
    left = max((_left_of(one, sheet) for one in shown), default=float(sheet.left))
    page = SvgPage(scene, left, sheet)
    afters = iter([*shown[1:], None])
    for number, part in enumerate(scene.parts):
        page.top += 4 * bool(number)
        page.heading(part.heading, part.note)
        for item in part.shows:
            after = next(afters)
            draw(page, item, axis_of(item) != axis_of(after))
    page.legend()
    for note in scene.notes:
        page.lines(note, "faint")
    return page.finish()


def as_address(svg: str) -> str:
    """Return an address that contains a picture, for an ``img`` of a page."""
    return f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"


def draw(page: SvgPage, item: Show, has_axis: bool) -> None:
    """Draw one of a part's drawings."""
    match item:
        case Lanes():
            LanesDrawing(page, item).draw(has_axis)
        case Curve():
            draw_curve(page, item, has_axis)
        case CellGrid():
            draw_grid(page, item)
        case NodeTree():
            draw_tree(page, item)


def draw_curve(page: SvgPage, curve: Curve, has_axis: bool) -> None:
    """Draw stacked areas, and lines over them, in steps."""
    x = TimeScale(curve.start, curve.end, page.left, page.sheet.edge)
    sums: list[tuple[int, int]] = []
    shapes: list[tuple[str, str, list[tuple[int, int]]]] = []
    for one in curve.series:
        values = list(one.values)
        if not one.kind.startswith("line"):
            values = sums = stacked(sums, values)
        shapes.append((one.name, one.kind, values))
    most = max([1, *(value for _, _, values in shapes for _, value in values)])
    page.top += 26
    is_alone = len([one for part in page.scene.parts for one in part.shows]) == 1
    high = CURVE * (3 if is_alone else 1)
    top, bottom = page.top, page.top + high
    whole = curve.scale if most >= 4 * curve.scale else 1  # round in its unit, if there is room
    for at in range(0, most + 1, tick_step(most // whole, 4) * whole):
        y = bottom - at * high / most
        page.line("grid" if at else "axis", x.left, y, x.right, y)
        page.words(x.left - 8, y + 4, f"{at / curve.scale:g}", "small", "end")
    page.words(MARGIN, top - 9, curve.unit, "small faint")
    x.grid(page, top, bottom)
    for name, kind, values in sorted(shapes[::-1], key=lambda shape: "line" in shape[1]):
        steps = [(x.at(time), bottom - value * high / most) for time, value in values]
        d = "".join(f"H{right:.1f}V{height:.1f}" for right, height in steps)
        if "line" in kind:
            begin = next((height for right, height in steps if right == x.left), bottom)
            d = f"M{x.left:.1f} {begin:.1f}{d}H{x.right:g}"
            page.path(kind, d, name, {"series": name})
            if kind == "line limit" and not curve.flags:
                page.words(x.right, begin - 5, name, "small faint", "end")
        else:
            d = f"M{x.left:.1f} {bottom:.1f}{d}H{x.right:g}V{bottom:.1f}Z"
            page.path(f"box {css(kind)}", d, name, {"series": name})
    page.flags(curve.flags, x, top, bottom)
    page.top = bottom + (4 if has_axis else 22)
    if has_axis:
        x.draw(page, curve.across)


def draw_grid(page: SvgPage, grid: CellGrid) -> None:
    """Draw a box for each cell, under the columns' names, with lines between cells."""
    sheet = page.sheet
    left = left_edge(grid.rows, sheet)
    width = (sheet.edge - left) / max(1, len(grid.columns))
    box = (0.94 if not grid.links else 0.72) * width
    pitch = 40 if any(cell.below for cell in grid.cells.values()) else sheet.pitch - 2
    heads = [name.split("\n") for name in grid.columns]
    for at, lines in enumerate(heads):
        for number, words in enumerate(lines):
            x, y = left + at * width + box / 2, page.top + 10 + 13 * number
            page.words(x, y, cut(words, width + 4, sheet.small), "small faint", "middle")
    top = page.top + 17 + 13 * (max(map(len, heads), default=1) - 1)
    for at, name in enumerate(grid.rows):
        page.words(MARGIN, top + at * pitch + 13, cut(name, left - 26, sheet.small), "small")
    for link in grid.links:
        (row1, column1), (row2, column2) = link.src, link.dst
        y1, y2 = top + row1 * pitch + 9, top + row2 * pitch + 9
        x1 = left + column1 * width + box
        kind = f"arrow {css(link.kind)}"
        page.line(kind, x1, y1, left + column2 * width, y2, link.data)
    for (row, column), cell in grid.cells.items():
        x, y = left + column * width, top + row * pitch
        data = {**cell.data, "row": row, "column": column}
        changed = " changed" * cell.is_changed
        page.rect(f"box {css(cell.kind)}{changed}", x + 0.5, y, box, sheet.box, cell.about, data)
        done = x + 0.5
        for kind, share in cell.fills:
            page.rect(
                f"box {css(kind)}", done, y, share * box, sheet.box, said_of(cell.about, cell.data)
            )
            done += share * box
        text = cut(cell.text, box - 2, sheet.small)
        kind = f"small in-{css(cell.kind)}"
        page.label(x + box / 2, y + 13, text, cell.kind, kind, is_bold=False)
        below = cut(cell.below, width - 2, sheet.small)
        page.words(x + box / 2, y + sheet.box + 12, below, "small faint", "middle")
    for (row, column), (row2, _) in grid.walls:
        x, y = left + column * width, top + row * pitch
        if row2 == row:
            page.line("wall", x + 0.97 * width, y - 2, x + 0.97 * width, y + sheet.box + 2)
        else:
            middle = y + (sheet.box + pitch) / 2
            page.line("wall", x - 0.03 * width, middle, x + 0.97 * width, middle)
    page.top = top + pitch * len(grid.rows) + 16


def draw_tree(page: SvgPage, tree: NodeTree) -> None:
    """Draw the root at the left, a box for each node, and a parent amid its children."""
    below, level, rows, leaves = tree.below, {0: 0}, dict[int, float](), 0
    for node in tree.nodes:
        level[node.id] = level[node.parent] + 1
        if node.id not in below:
            rows[node.id], leaves = leaves, leaves + 1
    for at in [*(node.id for node in reversed(tree.nodes)), 0]:
        if at in below:
            rows[at] = sum(rows[child.id] for child in below[at]) / len(below[at])
    scale = page.sheet.text / DESK.text
    root, box = ROOT * scale, 33 * scale
    level_room = (page.sheet.edge - MARGIN - root) / max(1, *level.values())
    pitch = min(max(LEVEL, 0.3 * page.sheet.width), level_room)
    top = page.top + 4
    places = {
        at: (MARGIN + (root + (level[at] - 1) * pitch if at else 0), top + row * LEAF)
        for at, row in rows.items()
    }
    page.rect("box queued", MARGIN, top + rows.get(0, 0) * LEAF + 7, box, 22, "the root")
    page.words(MARGIN + box / 2, top + rows.get(0, 0) * LEAF + 22, "root", "small", "middle")
    for node in tree.nodes:
        (x, y), (x0, y0) = places[node.id], places.get(node.parent, (MARGIN, top))
        x0 += pitch - 22 if node.parent else box
        page.path("link", f"M{x0:.1f} {y0 + 18:.1f}L{x:.1f} {y + 18:.1f}")
        kind = f"box {css(node.kind)}" + " changed" * node.is_changed
        page.rect(kind, x, y, pitch - 22, NODE, node.about, {"node": node.id, **node.data})
        for words, dy, bold in zip(node.lines, (15, 29), (" bold", ""), strict=True):
            words = cut(words, pitch - 30, page.sheet.small * (1.09 if bold else 1))
            look = f"small in-{css(node.kind)}{bold}"
            page.label(x + pitch / 2 - 11, y + dy, words, node.kind, look, bool(bold))
    page.top = top + max(1, leaves) * LEAF + 12


def _left_of(item: Show, sheet: Sheet) -> float:
    """Return the room that the names of rows need, if time runs next to them."""
    if isinstance(item, Curve):
        return left_edge([f"{item.unit}  "], sheet)
    if not isinstance(item, Lanes):
        return float(sheet.left)
    left = left_edge([f"{row.name}  {row.note}" for row in item.rows], sheet)
    if sheet.width < NARROW:
        return min(sheet.width * 0.35, left_edge([row.name for row in item.rows], sheet))
    groups = [max(row.group, row.group_note, key=len) for row in item.rows if row.group]
    most = sheet.width * 0.35
    return min(most, left + left_edge(groups, sheet) - 40 if groups else left)


def left_edge(names: Sequence[str], sheet: Sheet) -> float:
    """Return the left edge of the drawing, right of the longest name."""
    longest = max((width_of(name, sheet.text) for name in names), default=0.0)
    return min(sheet.width * 0.35, max(sheet.left, round(MARGIN + longest + 12)))


def stacked(
    below: Sequence[tuple[int, int]], above: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return the sum of two series of (time, value)."""
    sums, values = dict[int, int](), [0, 0]
    for time, which, value in sorted([(t, 0, v) for t, v in below] + [(t, 1, v) for t, v in above]):
        values[which] = value
        sums[time] = sum(values)
    return list(sums.items())
