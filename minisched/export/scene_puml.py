"""A scene as PlantUML: trees as components, lanes as timing, otherwise tables.

Times are decimal numbers in milliseconds, or in a smaller unit where the scene is short: PlantUML
needs whole numbers between ticks. Rows are ``rectangle`` lanes (PlantUML 1.2025 or newer), because
``concise`` lanes turn short boxes into hourglasses. Arrows carry no text, because it would collide
with the names of the lanes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from ..core.text import printable
from .looks import ARROWS, DARK_TEXT, LIGHT, SIGNS, flat, look
from .scene import CellGrid, LaneItem, LaneRow, Lanes, NodeTree, Scene, axis_of
from .units import MICROSECOND, MILLISECOND, NANOSECOND, exact, tick_step

# The first line of a diagram, in PlantUML's comments.
OLD = "' Renders with PlantUML 1.2020.2 (Debian 12) or newer."
NEW = "' Needs PlantUML 1.2025.0 or newer; the one of Debian 12 (1.2020.2) is too old."
HEAD = "#E4E7EB"  # the background of a part's heading
MARKUP = re.compile(r'["\\~<>\n]|([*/_-])\1+')
NOTHING = "{-}"  # the state of an idle lane
FAINT = "B0"  # the opacity of an arrow along its own lane, over the words there
WIDTH = 860  # pixels
ALONG = 9  # pixels on either side of a box's edge, for an arrow along its own lane
UNITS = {"milliseconds": MILLISECOND, "microseconds": MICROSECOND, "nanoseconds": NANOSECOND}
STYLE = f"""<style>
legend {{
  BackgroundColor {LIGHT["paper"]}
  LineColor {LIGHT["grid"]}
}}
timingDiagram {{
  FontSize 11
  FontColor {LIGHT["ink"]}
  LineColor {LIGHT["faint"]}
  arrow {{ LineThickness 1 }}
  rectangle {{
    FontSize 11
    LineColor #FFFFFF
  }}
}}
</style>"""


def to_puml(scene: Scene) -> str:
    """Return the diagram's text."""
    trees = [(at, one) for at, part in enumerate(scene.parts) for one in part.shows
             if isinstance(one, NodeTree)]  # fmt: skip
    shown = [(f"{part.heading}: {part.note}" if part.note else part.heading, one)
             for part in scene.parts for one in part.shows
             if isinstance(one, Lanes)]  # fmt: skip
    if trees:
        body = [*_trees(scene, trees)]
    elif not shown:
        body = [*_grids(scene)]
    else:
        body = [*_timing(scene, shown)]
    drawn = "\n".join(body)
    about = (
        f"\\n{creole(scene.parts[0].note)}"
        if scene.parts[0].note and (trees or len(shown) == 1)
        else ""
    )
    arrows = [kind for kind in scene.meanings if kind.startswith("arrow ")]
    kinds = [kind for kind in scene.meanings
             if kind not in (*SIGNS, *arrows) and f" {flat(kind)}" in drawn]  # fmt: skip
    cells = [f"<{flat(kind)}> {ink(kind, creole(scene.legend[kind]))} " for kind in kinds]
    links = [
        f"<color:{arrow_colour(kind[6:])}>**<U+2192>** {creole(scene.legend[kind])}</color>"
        for kind in arrows
    ]
    legend = [*([f"|{'|'.join(cells)}|"] if cells else []), *(["   ".join(links)] if links else [])]
    return "\n".join(
        [
            NEW if trees or shown else OLD,
            "@startuml",
            STYLE,
            f"title {creole(scene.title)}{about}",
            *body,
            *(["legend", *legend, "end legend"] if legend else []),
            "@enduml",
            "",
        ]
    )


def _timing(scene: Scene, shown: list[tuple[str, Lanes]]) -> Iterator[str]:
    """Yield all lanes with one start and end, otherwise the first; a heading is a lane, too."""
    first = shown[0][1]
    shown = [(heading, lanes) for heading, lanes in shown if axis_of(lanes) == axis_of(first)]
    duration = max(1, first.end - first.start)
    scale, tick = WIDTH / duration, tick_step(duration, most=14)
    unit = next(name for name, size in UNITS.items() if tick % size == 0)

    def at(time: int) -> str:
        """Return a time as the diagram writes it."""
        return exact(time - first.start, UNITS[unit])

    zero = f", from {exact(first.start)} ms" if first.start else ""
    yield f"caption time in {unit}{zero}"
    yield f"scale {exact(tick, UNITS[unit])} as {max(1, round(tick * scale))} pixels"
    changes: dict[int, dict[str, str]] = defaultdict(dict)  # the last entry of a time counts
    arrows: list[str] = []
    for part, (heading, lanes) in enumerate(shown):
        key = f"lane{part}_" if len(shown) > 1 else "lane"
        if len(shown) > 1:
            yield f'rectangle " " as {key}run'
            changes[first.start][f"{key}run"] = f'"{creole(heading)}" {HEAD}'
            changes[first.end][f"{key}run"] = NOTHING
        for number, row in enumerate(lanes.rows):
            yield f'rectangle "{creole(row.title)}" as {key}{number}'
            for time, what in _states(row, lanes, scale).items():
                changes[time][f"{key}{number}"] = what
            arrows += [f"{key}{number}@{at(one.start)} <-> @{at(one.end)} : {creole(one.label)}"
                       for one in row.spans if one.kind == "span"]  # fmt: skip
        for link in lanes.links:
            (src, start), (dst, end) = link.src, link.dst
            colour = arrow_colour(link.kind)
            if src == dst:  # from box to box along its lane: as long as its head is wide
                colour += FAINT
                arrows.append(f"' the next arrow is from {at(start)} to {at(end)}, drawn longer")
                start = max(lanes.start, start - round(ALONG / scale))
                end = min(lanes.end, end + round(ALONG / scale))
            arrows.append(f"{key}{src}@{at(start)} -[{colour}]> {key}{dst}@{at(end)}")
    for time in sorted(changes):
        yield f"@{at(time)}"
        yield from (f"{name} is {what}" for name, what in changes[time].items())
    yield from arrows
    for flag in first.flags:
        if flag.end == flag.start:
            until = flag.start + max(1, round(3 / scale))
            colour = f"{flat('bubble')};line:{LIGHT['bubble'][1:]}"
            yield f"highlight {at(flag.start)} to {at(until)} {colour} : {creole(flag.label)}"


def _states(row: LaneRow, lanes: Lanes, scale: float) -> dict[int, str]:
    """Return a lane's states by time; of two at a time the later one."""
    inside = [(max(box.start, lanes.start), min(box.end, lanes.end), box) for box in row.boxes]
    shown = sorted(((a, b, box) for a, b, box in inside if b > a), key=lambda item: item[:2])
    found = {lanes.start: NOTHING}
    for (start, end, box), after in zip(shown, [*shown[1:], None], strict=False):
        end = min(end, after[0]) if after else end
        if end > start:
            found |= {start: _state(box, (end - start) * scale), end: NOTHING}
    return {**found, lanes.end: found.get(lanes.end, NOTHING)}


def _state(span: LaneItem, width: float) -> str:
    fits = (text for text in (span.label, span.brief) if text and len(text) * 7 + 4 <= width)
    return f'"{ink(span.kind, creole(next(fits, " ")))}" {flat(span.kind)}'


def _trees(scene: Scene, trees: list[tuple[int, NodeTree]]) -> Iterator[str]:
    """Yield a package for each tree, one below the other, and a box for each node."""
    yield "left to right direction"
    yield "skinparam componentStyle rectangle"
    before = ""
    for number, (part, tree) in enumerate(trees):
        name = f"t{number}"
        yield f'package "{creole(scene.parts[part].heading)}" as {name} {{'
        yield f'  rectangle "root" as {name}_0 {flat("queued")}'
        for node in tree.nodes:
            lines = "\\n".join(ink(node.kind, creole(line)) for line in node.lines if line)
            border = ";line.bold" * node.is_changed
            yield f'  rectangle "{lines}" as {name}_{node.id} {flat(node.kind)}{border}'
        yield "}"
        for node in tree.nodes:
            yield f"{name}_{node.parent} -- {name}_{node.id}"
        if before:
            yield f"{before} -[hidden]right- {name}"
        before = name


def _grids(scene: Scene) -> Iterator[str]:
    """Yield a table for each grid under its part's heading, without the lines between cells."""
    for number, part in enumerate(scene.parts):
        for grid in (one for one in part.shows if isinstance(one, CellGrid)):
            yield f"rectangle grid{number} ["
            yield f"**{creole(part.heading)}** {creole(part.note)}"
            heads = (creole(name.replace("\n", " ")) for name in grid.columns)
            yield f"|= |= {' |= '.join(heads)} |"
            for row, name in enumerate(grid.rows):
                cells = (_cell(grid, row, column) for column in range(len(grid.columns)))
                yield f"| **{creole(name)}** |{'|'.join(cells)}|"
            yield "]"


def _cell(grid: CellGrid, row: int, column: int) -> str:
    """Return a place of a grid, in the colour of its kind."""
    if (cell := grid.cells.get((row, column))) is None:
        return " "
    words = grid.words(row, column) or " "
    return f"<{flat(cell.kind)}> {ink(cell.kind, creole(words))} "


def creole(text: str) -> str:
    """Return text with PlantUML's markup and ends of strings escaped."""
    written = printable(text)
    return MARKUP.sub(lambda found: "".join(f"<U+{ord(c):04X}>" for c in found[0]), written)


def ink(kind: str, words: str) -> str:
    """Return text in a look's colour, unless that is ink; ``words`` are already escaped."""
    is_light = look(kind).text != DARK_TEXT
    return f"<color:{look(kind).text}>{words}</color>" if is_light else words


def arrow_colour(kind: str) -> str:
    """Return the colour of an edge."""
    return LIGHT[kind if kind in ARROWS else "ink"]
