"""A scene as PlantUML: trees as a component diagram, else lanes or curves as a timing diagram.

Times are decimal numbers in milliseconds, or in a smaller unit where the scene is short: PlantUML
wants a whole number of them from tick to tick. Rows are ``rectangle`` lanes (PlantUML 1.2025 or
newer), because ``concise`` lanes turn short boxes into hourglasses. Arrows carry no text, which
would collide with the names of the lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .looks import OVER, SIGNS, UNDER, flat, look
from .palette import LIGHT
from .puml_style import Axis, arrow_colour, creole
from .scene import LaneItem, LaneRow, Lanes, NodeTree, Scene

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


def can_show(scene: Scene) -> bool:
    """Whether there is something that PlantUML has a diagram for."""
    return any(isinstance(one, Lanes | NodeTree) for part in scene.parts for one in part.shows)


def to_puml(scene: Scene, more: Sequence[str] = ()) -> str:
    """The diagram's text; ``more`` stands under the title, a line each."""
    trees = [(at, one) for at, part in enumerate(scene.parts) for one in part.shows
             if isinstance(one, NodeTree)]  # fmt: skip
    shown = [(f"{part.heading}: {part.note}" if part.note else part.heading, one)
             for part in scene.parts for one in part.shows
             if isinstance(one, Lanes)]  # fmt: skip
    body = [*_trees(scene, trees)] if trees else [*_timing(scene, shown)]
    drawn = "\n".join(body)
    about = f"\\n{creole(scene.parts[0].note)}" if scene.parts[0].note and len(shown) < 2 else ""
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
            "\\n".join([f"title {creole(scene.title)}{about}", *map(creole, more)]),
            *body,
            *(["legend", *legend, "end legend"] if legend else []),
            "@enduml",
            "",
        ]
    )


def ink(kind: str, words: str) -> str:
    """Text in the colour that is legible on a look; ``words`` are escaped already."""
    colour = look(kind).text if look(kind).fill else ""
    return f"<color:{colour}>{words}</color>" if colour else words


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


def _trees(scene: Scene, trees: list[tuple[int, NodeTree]]) -> Iterator[str]:
    """A package a tree, one below the other, a box a node."""
    yield "left to right direction"
    yield "skinparam componentStyle rectangle"
    before = ""
    for number, (part, tree) in enumerate(trees):
        name = f"t{number}"
        yield f'package "{creole(f"{scene.parts[part].heading}: {tree.name}")}" as {name} {{'
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
