"""A scene as PlantUML: trees as components, lanes as timing or sequence, and else grids as tables.

Times are decimal numbers in milliseconds, or in a smaller unit where the scene is short: PlantUML
wants a whole number of them from tick to tick. Rows are ``rectangle`` lanes (PlantUML 1.2025 or
newer), because ``concise`` lanes turn short boxes into hourglasses. Arrows carry no text, which
would collide with the names of the lanes.
"""

from __future__ import annotations

from collections.abc import Iterator

from .looks import LIGHT, OVER, SIGNS, UNDER, flat
from .puml_style import Axis, arrow_colour, creole, ink
from .scene import CellGrid, LaneItem, LaneLink, LaneRow, Lanes, NodeTree, Scene
from .units import ms

FAINT = "66"  # the opacity of an arrow that runs along its lane, over what is written there
HEAD = "#E4E7EB"  # behind the heading of a part
STYLE = f"""<style>
legend {{
  BackgroundColor {LIGHT.background}
  LineColor {LIGHT.grid}
}}
timingDiagram {{
  FontSize 11
  FontColor {LIGHT.ink}
  LineColor {LIGHT.faint_ink}
  arrow {{ LineThickness 1 }}
  rectangle {{
    FontSize 11
    LineColor #FFFFFF
  }}
}}
</style>"""


def to_puml(scene: Scene) -> str:
    """The diagram's text."""
    trees = [(at, one) for at, part in enumerate(scene.parts) for one in part.shows
             if isinstance(one, NodeTree)]  # fmt: skip
    shown = [(f"{part.heading}: {part.note}" if part.note else part.heading, one)
             for part in scene.parts for one in part.shows
             if isinstance(one, Lanes)]  # fmt: skip
    if trees:
        body = [*_trees(scene, trees)]
    elif not shown:
        body = [*_grids(scene)]
    elif shown[0][1].runs_down:
        body = [*_sequence(shown[0][1])]
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
    """Lanes of one start and end, all of them; of others the first. A heading is a lane, too."""
    first = shown[0][1]
    shown = [(heading, lanes) for heading, lanes in shown if lanes.axis == first.axis]
    axis = Axis(max(1, first.end - first.start))
    yield f"caption time in {axis.unit}"
    yield f"scale {axis.at(axis.tick)} as {max(1, round(axis.tick * axis.scale))} pixels"
    changes: dict[int, dict[str, str]] = {}  # at one moment the last word counts
    arrows: list[str] = []
    for part, (heading, lanes) in enumerate(shown):
        key = f"lane{part}_" if len(shown) > 1 else "lane"
        if len(shown) > 1:
            yield f'rectangle " " as {key}run'
            changes.setdefault(0, {})[f"{key}run"] = f'"{creole(heading)}" {HEAD}'
            changes.setdefault(first.end - first.start, {})[f"{key}run"] = "{-}"
        for at, row in enumerate(lanes.rows):
            yield f'rectangle "{creole(row.title)}" as {key}{at}'
            _states(f"{key}{at}", row, lanes, axis, changes)
        for link in lanes.links:
            (src, start), (dst, end) = link.src, link.dst
            colour = arrow_colour(link.kind) + FAINT * (src == dst)
            since, until = (axis.at(time - lanes.start) for time in (start, end))
            arrows.append(f"{key}{src}@{since} -[{colour}]> {key}{dst}@{until}")
    for time in sorted(changes):
        yield f"@{axis.at(time)}"
        yield from (f"{name} is {what}" for name, what in changes[time].items())
    yield from arrows
    width = max(1, round(3 / axis.scale))
    for flag in first.flags:
        if flag.end == flag.start:
            since, until = (
                axis.at(time - first.start) for time in (flag.start, flag.start + width)
            )
            yield (f"highlight {since} to {until} {flat('bubble')};line:{LIGHT.bubble[1:]} : "
                   f"{creole(flag.label)}")  # fmt: skip


def _states(
    name: str, row: LaneRow, lanes: Lanes, axis: Axis, changes: dict[int, dict[str, str]]
) -> None:
    """What a lane shows from when on; of two things at a time the later one."""
    spans = [span for span in row.spans if span.kind not in (*SIGNS, *UNDER, *OVER)]
    inside = [(max(s.start, lanes.start), min(s.end, lanes.end), s) for s in spans]
    shown = sorted(((a, b, s) for a, b, s in inside if b > a), key=lambda item: item[:2])
    changes.setdefault(0, {})[name] = "{-}"
    for (start, end, span), after in zip(shown, [*shown[1:], None], strict=False):
        end = min(end, after[0]) if after else end
        if end > start:
            text = _state(span, (end - start) * axis.scale)
            changes.setdefault(start - lanes.start, {})[name] = text
            changes.setdefault(end - lanes.start, {})[name] = "{-}"
    if not shown or shown[-1][1] < lanes.end:
        changes.setdefault(lanes.end - lanes.start, {}).setdefault(name, "{-}")


def _state(span: LaneItem, width: float) -> str:
    fits = (text for text in (span.label, span.brief) if text and len(text) * 7 + 4 <= width)
    return f'"{ink(span.kind, creole(next(fits, " ")))}" {flat(span.kind)}'


# -- Who tells whom: what runs at the same time stands in one row ----------------------------------

GROUPS = {"host": "#FFF8EC", "device": "#EEF6FC"}
HEADS = {"launch": ("-", ">>"), "result": ("-", "->")}  # around the colour
IDLE = ("bubble", "waited")


def _sequence(lanes: Lanes) -> Iterator[str]:
    """Participants by group, then notes in rows, and behind each row the arrows that leave it."""
    yield "!pragma teoz true"
    yield "hide footbox"
    yield "skinparam sequenceMessageAlign center"
    yield "skinparam defaultFontSize 12"
    for group in dict.fromkeys(row.group for row in lanes.rows):
        yield f"box {group.capitalize()} {GROUPS.get(group, HEAD)}"
        for at, row in enumerate(lanes.rows):
            if row.group == group:
                yield f'participant "{creole(row.name)}" as lane{at}'
        yield "end box"
    begins, links = list(lanes.flags), list(lanes.links)
    notes = {span.data.get("id") for row in lanes.rows for span in row.spans}
    for beside in rows_of(lanes):
        while begins and begins[0].start <= max(span.start for _, span in beside):
            yield f"== {begins.pop(0).label} =="
        for joined, (at, span) in zip(("", *("& " for _ in beside)), beside, strict=False):
            about = "\\n".join(ink(span.kind, creole(line))
                              for line in (span.label, f"{ms(span.duration)} ms"))  # fmt: skip
            yield f"{joined}rnote over lane{at} {flat(span.kind)} : {about}"
        ids = {span.data.get("id") for _, span in beside}
        end = max(span.end for _, span in beside)
        for link in list(links):  # what takes no time has no note: its arrows go with the others
            src = link.data.get("src")
            if src in ids or (src not in notes and link.src[1] <= end):
                links.remove(link)
                yield _message(link)
    yield from (_message(link) for link in links)


def rows_of(lanes: Lanes) -> Iterator[list[tuple[int, LaneItem]]]:
    """What takes time and stands in its lane, in order; what runs at once and apart together."""
    told = [(at, span) for at, row in enumerate(lanes.rows) for span in row.spans
            if span.end > span.start and span.kind not in (*IDLE, *OVER, *UNDER)]  # fmt: skip
    told.sort(key=lambda item: (item[1].start, item[1].end, item[1].data.get("id", 0)))
    linked_ = {(link.data.get("src"), link.data.get("dst")) for link in lanes.links}
    row: list[tuple[int, LaneItem]] = []
    for at, span in told:
        if row and not all(
            span.start < other.end
            and at != lane
            and (other.data.get("id"), span.data.get("id")) not in linked_
            for lane, other in row
        ):
            yield row
            row = []
        row.append((at, span))
    if row:
        yield row


def _message(link: LaneLink) -> str:
    tail, head = HEADS.get(link.kind, ("-", ">"))
    words = creole(link.words)
    colour = arrow_colour(link.kind)
    return f"lane{link.src[0]} {tail}[{colour}]{head} lane{link.dst[0]} : {words}"


def _trees(scene: Scene, trees: list[tuple[int, NodeTree]]) -> Iterator[str]:
    """A package a tree, one below the other, a box a node."""
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
    """A table for each grid, under its part's heading; its lines from cell to cell are left out."""
    for number, part in enumerate(scene.parts):
        for grid in (one for one in part.shows if isinstance(one, CellGrid)):
            yield f"rectangle grid{number} ["
            yield f"**{creole(part.heading)}** {creole(part.note)}"
            heads = (creole(name.replace("\n", " ")) for name in grid.columns)
            yield f"|= |= {' |= '.join(heads)} |"
            for row, name in enumerate(grid.rows):
                cells = (_cell(grid, row, column) for column in range(len(grid.columns)))
                yield f"|= {creole(name)} |{'|'.join(cells)}|"
            yield "]"


def _cell(grid: CellGrid, row: int, column: int) -> str:
    """A place of a grid, in the colour of what is there."""
    if (cell := grid.cells.get((row, column))) is None:
        return " "
    words = " ".join(filter(None, (cell.text, cell.below))) or " "
    return f"<{flat(cell.kind)}> {ink(cell.kind, creole(words))} "
