"""The contents of a picture, independent of its form.

A topic is one function from a trace to a ``Scene``, for all forms. ``scene_svg``,
``scene_puml`` and ``scene_text`` write any scene without the parts that they can't show (PlantUML
draws the first part that it has a diagram for). A new picture is::

    def poster(traces: Sequence[Trace]) -> Scene:
        forward = LaneItem("forward", 0, 8_200_000, "forward 5", "5")
        rows = [LaneRow(trace.loop, [forward, ...], "device") for trace in traces]
        return Scene("a finding, true of these runs", about_run(traces[0]),
                     [Part("Three settled periods", "one scale", [Lanes(rows, end=27_600_000)])])

    to_svg(poster(traces)); to_text(poster(traces), columns=80); to_puml(poster(traces))

Times are whole nanoseconds from the scene's own zero. A ``kind`` is a look: ``looks.py`` contains
colour, texture and glyph. A new kind gets a line there, and one meaning in the whole project.
Legends name the kinds that occur, in the order of ``legend``, except those with their meaning on
their boxes. Names and labels are plain text: writers shorten, escape and place them, keep
arrows out of words, and give each row the same height.

Lanes that follow one another with the same ``start`` and ``end`` share one time axis, below the
last of them. The needs of every form have their place here; those of one topic alone do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..trace import Trace
from .looks import OVER, SIGNS

Data = Mapping[str, str | int]  # of a shape: ``data-`` attributes in an SVG


@dataclass(frozen=True)
class LaneItem:
    """An item on a row, for some time.

    A kind in ``looks.SIGNS`` is a sign at ``start``. The kind ``outline`` is a frame around other
    items, with ``label`` as its number; ``span`` is a bracket above them. ``ghost`` marks a place
    that the item could have had, and ``said`` is only text below it. ``label`` stands in the box
    where there is room, otherwise ``brief``. ``about`` is one sentence for a pointer on it. An
    ``is_quiet`` item is grey in a picture about another matter.
    """

    kind: str
    start: int
    end: int
    label: str = ""
    brief: str = ""
    about: str = ""
    data: Data = field(default_factory=dict)
    is_quiet: bool = False

    @property
    def duration(self) -> int:
        """Return its nanoseconds, including the parts outside of the picture."""
        return int(self.data.get("end", self.end)) - int(self.data.get("start", self.start))


@dataclass(frozen=True)
class LaneRow:
    """A lane: its name, and a quiet note next to it.

    Neighbouring rows of the same ``group`` belong together under its name. ``tail`` is words after
    the last item.
    """

    name: str
    spans: Sequence[LaneItem]
    note: str = ""
    group: str = ""
    group_note: str = ""
    tail: str = ""

    @property
    def boxes(self) -> list[LaneItem]:
        """Return the items that take time; no signs or frames."""
        return [item for item in self.spans if item.kind not in (*SIGNS, *OVER)]

    @property
    def title(self) -> str:
        """Return its full name, for forms that have one line for it: ``step 5 host``."""
        name = f"{self.group} {self.name}".strip()
        return f"{name} ({self.note})" if self.note else name


@dataclass(frozen=True)
class LaneLink:
    """An arrow from a moment on one row to a moment on another: (row, time) each."""

    kind: str
    src: tuple[int, int]
    dst: tuple[int, int]
    about: str = ""
    data: Data = field(default_factory=dict)


@dataclass(frozen=True)
class Lanes:
    """Rows over time. ``flags`` concern all rows: times with a word or two."""

    rows: Sequence[LaneRow]
    end: int
    start: int = 0
    links: Sequence[LaneLink] = ()
    flags: Sequence[LaneItem] = ()
    across: str = "time in ms"  # what its axis counts, in millionths


@dataclass(frozen=True)
class Series:
    """A value from each moment on; ``kind`` is an area's look, or ``line`` for a line over them."""

    name: str
    kind: str
    values: Sequence[tuple[int, int]]  # time, value


@dataclass(frozen=True)
class Curve:
    """Amounts over time, in steps; later areas stand on earlier ones."""

    series: Sequence[Series]
    end: int
    unit: str
    start: int = 0
    flags: Sequence[LaneItem] = ()
    scale: int = 1  # divisor of a value, for its unit
    across: str = "time in ms"  # what its axis counts, in millionths


@dataclass(frozen=True)
class GridCell:
    """A place of a grid: ``text`` in the box, ``below`` quietly under it.

    ``fills`` gives the filled share of the box by kind, from the left, each up to 1.
    """

    kind: str
    text: str = ""
    below: str = ""
    about: str = ""
    is_changed: bool = False  # since the row above
    fills: Sequence[tuple[str, float]] = ()
    data: Data = field(default_factory=dict)


@dataclass(frozen=True)
class CellGrid:
    """Cells by (row, column). ``links`` lead from one (row, column) to another.

    A column's name may have two lines. ``walls`` stand between two neighbours each: a line that a
    form may leave out.
    """

    rows: Sequence[str]
    columns: Sequence[str]
    cells: Mapping[tuple[int, int], GridCell]
    links: Sequence[LaneLink] = ()
    walls: Sequence[tuple[tuple[int, int], tuple[int, int]]] = ()

    def words(self, row: int, column: int) -> str:
        """Return all words of a cell for a form without arrows: also those of the arrow to it."""
        cell = self.cells[row, column]
        arrows = [link.about for link in self.links if link.dst == (row, column)]
        return " ".join(filter(None, (cell.text, cell.below, *arrows)))


@dataclass(frozen=True)
class TreeBox:
    """A node of a tree; ``lines`` stand in it. ``parent`` 0 is the root."""

    id: int
    parent: int
    kind: str
    lines: tuple[str, str]
    about: str = ""
    is_changed: bool = False
    data: Data = field(default_factory=dict)


@dataclass(frozen=True)
class NodeTree:
    """Nodes, parents before children."""

    nodes: Sequence[TreeBox]

    @property
    def below(self) -> dict[int, list[TreeBox]]:
        """Return the children of each node that has any."""
        found: dict[int, list[TreeBox]] = {}
        for node in self.nodes:
            found.setdefault(node.parent, []).append(node)
        return found


Show = Lanes | Curve | CellGrid | NodeTree


def axis_of(one: Show | None) -> tuple[int, int] | None:
    """Return the start and end of a part's time axis, if it has one."""
    return (one.start, one.end) if isinstance(one, Lanes | Curve) else None


@dataclass(frozen=True)
class Part:
    """A heading with a quiet note, and the drawings below it."""

    heading: str
    note: str
    shows: Sequence[Show]


@dataclass(frozen=True)
class Scene:
    """A whole picture. ``title`` is its finding; ``about`` names the run.

    ``legend`` gives the meaning of boxes and signs, and of arrows as ``arrow token``; ``notes`` are
    sentences below. ``lang`` is the language of its words.
    """

    title: str
    about: str
    parts: Sequence[Part]
    legend: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    lang: str = "en"

    @property
    def meanings(self) -> dict[str, str]:
        """Return the meaning of each kind that occurs."""
        seen = {kind for part in self.parts for one in part.shows for kind in _of(one)}
        return {kind: words for kind, words in self.legend.items() if kind in seen}

    @property
    def quiet(self) -> set[str]:
        """Return the kinds that occur only as quiet items."""
        lanes = [one for part in self.parts for one in part.shows if isinstance(one, Lanes)]
        items = [item for one in lanes for row in one.rows for item in row.spans]
        loud = {item.kind for item in items if not item.is_quiet}
        return {item.kind for item in items if item.is_quiet} - loud


def _of(one: Show) -> list[str]:
    """Return the kinds in a part's picture."""
    match one:
        case Lanes():
            spans = [span.kind for row in one.rows for span in row.spans]
            return [*spans, *(f"arrow {link.kind}" for link in one.links),
                    *(flag.kind for flag in one.flags)]  # fmt: skip
        case Curve():
            return [series.kind for series in one.series] + [flag.kind for flag in one.flags]
        case CellGrid():
            cells, links = one.cells.values(), [f"arrow {link.kind}" for link in one.links]
            fills = [kind for cell in cells for kind, _ in cell.fills]
            changed = ["changed"] * any(cell.is_changed for cell in cells)
            wall = ["wall"] * bool(one.walls)
            return [*(cell.kind for cell in cells), *fills, *changed, *links, *wall]
        case NodeTree():
            return [node.kind for node in one.nodes] + ["changed"]
    return []


def about_run(trace: Trace, *more: str) -> str:
    """Return the run of a picture: ``overlap on sim, hash model, simulated time``."""
    model = f"{trace.model} model" + f" in {trace.dtype}" * bool(trace.dtype)
    return "; ".join(
        filter(None, [f"{trace.loop} on {trace.device}, {model}, {trace.clock_words}", *more])
    )
