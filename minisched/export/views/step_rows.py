"""The steps of a loop as a PlantUML timing diagram: a lane for each step's host and device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...trace import Mark, Trace
from ...trace.events import is_host
from ..layout import Arrow, Box, Lane, View, boxes_of
from ..palette import ARROWS
from ..puml_style import creole
from ..puml_timing import RunPanel, draw_panels
from ..svg import FLAG, about, box_class, char_width, draw_legend, has_waits, wait_style, waits_of
from ..text import draw_axis, letter, letters_of
from ..units import ms
from .axes import TimeAxis
from .page import EDGE, Page, about_run, band, line, path, svg_text
from .shown_steps import shown
from .text_page import TextPage, columns_here

# -- A run's steps one under the other: each step has a lane for its host and one for its device
#
# It is a view (``layout.py``) whose lanes are steps, so every exporter draws it as it draws any.

Key = tuple[str, int]  # whose step (``prefill``, ``decode``; empty where there is one scheduler)


@dataclass(frozen=True)
class StepRow:
    """A step, from the moment it was scheduled until its result was processed.

    ``lanes``: the host's, its thread's, then the device's; a second of one where two things of a
    step overlap there. All are named after the step.
    """

    side: str
    step: int
    lanes: tuple[Lane, ...]
    boxes: tuple[Box, ...]  # on those lanes

    @property
    def name(self) -> str:
        """``step 5``, ``prefill step 5``."""
        return f"{self.side} step {self.step}".strip()

    @property
    def start(self) -> int:
        """When the host began to schedule it."""
        return min(box.slice.start for box in self.boxes)

    @property
    def end(self) -> int:
        """When its last part was over."""
        return max(box.slice.end for box in self.boxes)

    @property
    def device_span(self) -> tuple[int, int]:
        """When a device began with it, and when the last one had done with it."""
        device = [box.slice for box in self.boxes if box.lane.side == "device"]
        return min(item.start for item in device), max(item.end for item in device)


def rows_of(trace: Trace, count: int) -> list[StepRow]:
    """The steps that the other parts show, or ``count`` of them, whole; the first one first.

    Raises:
        NothingToShow: no step ran.
    """
    view, sides = shown(trace, count), sides_of(trace)
    steps: dict[Key, list[Box]] = {}
    for box in boxes_of(trace):
        if box.step:
            steps.setdefault((sides[box.slice.lane], box.step), []).append(box)
    begun = ((_forward_start(boxes), key, boxes) for key, boxes in steps.items())
    found = [_row(key, boxes) for at, key, boxes in begun if view.start <= at < view.end]
    return sorted(found, key=lambda row: (row.start, row.step))


def steps_view(trace: Trace, rows: list[StepRow]) -> View:
    """The rows as a view: everything that belongs to one of them, and the edges between that."""
    boxes = {box.slice.id: box for row in rows for box in row.boxes}
    arrows = (
        Arrow(boxes[edge.src], boxes[edge.dst], edge.kind)
        for edge in trace.edges
        if edge.src in boxes and edge.dst in boxes
    )
    start, end = min(row.start for row in rows), max(row.end for row in rows)
    lanes = tuple(lane for row in rows for lane in row.lanes)
    steps = [row.step for row in rows]
    return View(trace, start, end, min(steps), max(steps), lanes, tuple(boxes.values()),
                tuple(arrows), ())  # fmt: skip


def sides_of(trace: Trace) -> dict[str, str]:
    """Which scheduler a lane belongs to; the link between two belongs to the one that sends."""
    lanes = dict.fromkeys(item.lane for item in trace.slices)
    named = [lane.removesuffix(" host") for lane in lanes if lane.endswith(" host")]
    found = {lane: next((s for s in named if lane.startswith(f"{s} ")), "") for lane in lanes}
    slices = {item.id: item for item in trace.slices}
    for edge in trace.edges:
        if not found[slices[edge.dst].lane]:
            found[slices[edge.dst].lane] = found[slices[edge.src].lane]
    return found


def _forward_start(boxes: list[Box]) -> int:
    """When the first device began with a step; -1: none did."""
    starts = (box.slice.start for box in boxes if box.slice.name == "forward")
    return min(starts, default=-1)


def _row(key: Key, boxes: list[Box]) -> StepRow:
    groups: dict[str, list[Box]] = {"host": [], "thread": [], "device": []}
    for box in boxes:
        groups[_where(box.slice.lane)].append(box)
    moved = [box for where in groups for box in _on_lanes(key, where, groups[where])]
    return StepRow(*key, tuple(dict.fromkeys(box.lane for box in moved)), tuple(moved))


def _where(lane: str) -> str:
    return "thread" if lane.endswith("thread") else "host" if is_host(lane) else "device"


def _on_lanes(key: Key, where: str, boxes: list[Box]) -> Iterator[Box]:
    """Boxes on as few lanes as hold them without overlap, lane by lane."""
    packed: list[list[Box]] = []
    for box in boxes:
        room = (lane for lane in packed if lane[-1].slice.end <= box.slice.start)
        if (found := next(room, None)) is None:
            packed.append(found := [])
        found.append(box)
    for number, boxes in enumerate(packed):
        lane = _lane(key, where, number)
        yield from (Box(box.slice, lane, box.step) for box in boxes)


def _lane(key: Key, where: str, number: int) -> Lane:
    """A step's lane; ``number`` counts those that hold what the first has no room for."""
    side, step = key
    words = [side, f"step {step}", "thread" * (where == "thread"), "also" * bool(number)]
    name = " ".join(filter(None, words))
    return Lane(
        f"{side}step{step}{where}{number or ''}", name, "device" if where == "device" else "host"
    )


# -- What the steps of a run tell: how far each overlaps with the one before, in words -------------


def together(before: StepRow, row: StepRow) -> int:
    """Nanoseconds in which two steps were both on their way."""
    return max(0, min(before.end, row.end) - max(before.start, row.start))


def early(before: StepRow, row: StepRow) -> int:
    """Nanoseconds by which the host began a step before the device was done with the one before."""
    return before.device_span[1] - row.start


def rhythm(rows: Sequence[StepRow]) -> str:
    """One sentence on all of them, with the least and the most where they differ."""
    sides = {row.side: [other for other in rows if other.side == row.side] for row in rows}
    pairs = [pair for mine in sides.values() for pair in pairwise(mine)]
    done = "the device is done with the one above"
    if len(sides) > 1:
        done = "its own device is done with the step before"
    ahead = sorted(time for time in (early(*pair) for pair in pairs) if time > 0)
    if not pairs:
        return "one step"
    if not ahead:
        return f"{'each' if len(sides) > 1 else 'the'} host begins a step only when {done}"
    every = "a step" if len(ahead) == len(pairs) else f"{len(ahead)} of these {len(pairs)} steps"
    times = " to ".join(dict.fromkeys((ms(ahead[0]), ms(ahead[-1]))))
    if len(sides) > 1:
        return f"a host begins {every} {times} ms before {done}"
    return f"the host begins {every} {times} ms before {done}"


# -- Where everything lies in a picture of steps, and its boxes, arrows and flags ------------------

LEFT, LANE, BOX, GAP = 158, 25, 17, 22  # pixels: row titles, lane to lane, a box, between two rows


@dataclass(frozen=True)
class Chart:
    """The rows on the page; ``x`` counts from the view's start."""

    view: View
    rows: list[StepRow]
    x: TimeAxis
    top: float

    def y(self, lane: Lane) -> float:
        """The upper edge of a lane's boxes."""
        y = self.top
        for row in self.rows:
            if lane in row.lanes:
                return y + row.lanes.index(lane) * LANE
            y += len(row.lanes) * LANE + GAP
        raise KeyError(lane)

    @property
    def bottom(self) -> float:
        """Below the last row."""
        return self.y(self.rows[-1].lanes[-1]) + LANE

    def span(self, start: int, end: int) -> tuple[float, float]:
        """Left edge and width of an interval of the run."""
        return self.x.span(*self.view.clip(start, end))

    def boxes(self) -> Iterator[str]:
        """Every slice that takes time, with its name where there is room."""
        for box in self.view.boxes:
            if box.slice.duration > 0:
                yield from self._box(box)

    def arrows(self) -> Iterator[str]:
        """Every edge between two of them."""
        return map(self._arrow, self.view.arrows)

    def flags(self) -> Iterator[str]:
        """A flag for each wait, above the step that waits; of a step not shown above the first."""
        for mark in waits_of(self.view):
            rows = (row for row in self.rows if row.step == mark.attrs.get("step"))
            yield self._flag(mark, next(rows, self.rows[0]))

    def _box(self, box: Box) -> Iterator[str]:
        item, kind, y = box.slice, box_class(box.slice.name), self.y(box.lane)
        left, width = self.span(item.start, item.end)
        said = f"{box.label}, {item.lane}, {ms(item.start)} to {ms(item.end)} ms"
        yield (
            f'<rect class="box {kind}" x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{BOX}" rx="2" data-id="{item.id}" data-step="{box.step}">'
            f"<title>{said}</title></rect>"
        )
        if len(item.name) * char_width(11) + 2 <= width:
            yield svg_text(left + width / 2, y + 13, item.name, f"on-{kind}", "middle")

    def _arrow(self, arrow: Arrow) -> str:
        kind = arrow.brings if arrow.brings in ARROWS else "launch"
        (x1, _), (x2, _) = self.span(arrow.start, arrow.start), self.span(arrow.end, arrow.end)
        y1, y2 = self.y(arrow.src.lane), self.y(arrow.dst.lane)
        if y1 == y2:
            kind += " level"
            d = f"M{x1 - 5:.1f} {y1 + BOX}c0 5 {x2 - x1 + 11:.1f} 5 {x2 - x1 + 11:.1f} 0"
        elif y2 > y1:
            d = f"M{x1:.1f} {y1 + BOX}L{x2:.1f} {y2}"
        else:
            d = f"M{x1:.1f} {y1}L{x2:.1f} {y2 + BOX}"
        return path(f"arrow {kind}", d, src=arrow.src.slice.id, dst=arrow.dst.slice.id)

    def _flag(self, mark: Mark, row: StepRow) -> str:
        left, _ = self.span(mark.time, mark.time)
        d = f"M{left:.1f} {self.y(row.lanes[0]) - 1:.1f}{FLAG}"
        return path("flag", d, f"{about(mark)} at {ms(mark.time)} ms", mark="wait")


# -- The steps of a loop one under the other: what each goes through, and how far two overlap ------

STYLE = (
    "<style>.both { fill: var(--token); opacity: .17 } .arrow.level { marker-end: none }\n"
    ".span { stroke: var(--token); stroke-width: 1.2 } .spanned { fill: var(--token) }</style>"
)


def draw_steps(trace: Trace, count: int) -> str:
    """The picture; above each step stands how long it was on its way with the one before.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    view = steps_view(trace, rows)
    page = Page(
        f"{trace.loop}: step under step",
        about_run(trace, "0 is when the first of these steps is scheduled"),
    )
    chart = Chart(view, rows, TimeAxis(view.duration, left=LEFT), page.top + 18)
    page.add(STYLE, *([wait_style()] if has_waits([view]) else []))
    page.heading(rhythm(rows))
    page.add(*chart.x.grid(chart.top, chart.bottom))
    for row in rows:
        page.add(*_background(chart, row))
    pairs = [(a, b) for a, b in pairwise(rows) if a.side == b.side and together(a, b)]
    for before, row in pairs:
        page.add(_tint(chart, before, row))
    page.add(*chart.boxes(), *chart.arrows(), *chart.flags(), *chart.x.draw(chart.bottom + 6))
    for before, row in pairs:
        page.add(*_measure(chart, before, row))
    legend, page.top = draw_legend([view], chart.bottom + 56, EDGE)
    page.add(*legend)
    if pairs:
        page.top += 22
        page.add(band(20, page.top - 18, 18, 12, "both"))
        page.add(svg_text(44, page.top - 8, "the step above is on its way, too"))
    return page.finish()


def _background(chart: Chart, row: StepRow) -> list[str]:
    """The lanes of a step, as long as it was on its way, and its name."""
    drawn, (left, width) = [], chart.span(row.start, row.end)
    for lane in row.lanes:
        y = chart.y(lane)
        drawn.append(band(left, y - 2, width, 21))
        side = "thread" if " thread" in lane.name else lane.side
        drawn.append(svg_text(LEFT - 8, y + 13, side, "small faint", "end"))
    y = chart.y(row.lanes[0])
    drawn.append(svg_text(20, y + 13, row.name, "bold"))
    drawn.append(svg_text(20, y + 29, _who(row), "small faint"))
    return drawn


def _who(row: StepRow) -> str:
    """``decode, 4 rows``."""
    item = next(box.slice for box in row.boxes if box.slice.name == "forward")
    return f"{item.mode}, {len(item.rids)} row{'s' * (len(item.rids) != 1)}"


def _tint(chart: Chart, before: StepRow, row: StepRow) -> str:
    """The time in which a step and the one above it were both on their way."""
    (left, width), top = chart.span(row.start, min(before.end, row.end)), chart.y(row.lanes[0])
    return band(left, top - 2, width, chart.y(row.lanes[-1]) - top + 21, "both")


def _measure(chart: Chart, before: StepRow, row: StepRow) -> list[str]:
    """How long that was."""
    left, width = chart.span(row.start, min(before.end, row.end))
    y, right = chart.y(row.lanes[0]) - GAP / 2 - 1, left + width
    words = f"{ms(together(before, row))} ms together"
    room = len(words) * char_width(11)
    middle = min(max(left + width / 2, LEFT + room / 2), EDGE - room / 2)
    return [
        line("span", left, y, right, y, overlap=row.step),
        line("span", left, y - 4, left, y + 4),
        line("span", right, y - 4, right, y + 4),
        band(middle - room / 2, y - 7, room, 14, "halo"),
        svg_text(middle, y + 4, words, "small spanned", "middle"),
    ]


# -- The steps of a loop for a terminal: a lane for each step's host and device, and the moments

HEADS = ("step", "scheduled", "launched", "on the device", "processed", "both on their way")
BOTH = "both on their way: how long this step and the one above overlap, from schedule to process"


def write_steps(trace: Trace, count: int) -> str:
    """The lanes and a table of moments.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    view = steps_view(trace, rows)
    page = TextPage(f"{trace.loop}: step under step", about_run(trace))
    page.heading(rhythm(rows))
    margin = max(len(lane.title) for lane in view.lanes) + 3
    cells = columns_here() - margin
    for lane in view.lanes:
        page.lines.append(f"{lane.title:>{margin - 2}} │{draw_lane(view, view.on(lane), cells)}")
    page.lines = [line.rstrip() for line in page.lines]
    page.lines += draw_axis(view.duration, cells, margin)
    page.heading("Moments", "ms since the first of these steps was scheduled")
    page.table(HEADS, list(_moments(view, rows)))
    page.write("", BOTH)
    names = [box.slice.name for box in view.boxes if box.slice.duration]
    page.write("", letters_of(names))
    return page.finish()


def draw_lane(view: View, boxes: tuple[Box, ...], cells: int) -> str:
    """One lane: every slice that takes time has a letter of its own, if it must beside its place.

    A longer one has its letter as often as it has room.
    """
    drawn, free, scale = "", 0, max(1, view.duration)
    longer = [box for box in boxes if box.slice.duration]
    for left, box in zip(range(len(longer), 0, -1), longer, strict=True):
        start, end = view.clip(box.slice.start, box.slice.end)
        first = min(max(free, start * cells // scale), cells - left)
        free = min(max(first + 1, -(-end * cells // scale)), cells - left + 1)
        drawn += " " * (first - len(drawn)) + letter(box.slice.name) * (free - first)
    return drawn


def _moments(view: View, rows: list[StepRow]) -> Iterator[list[str]]:
    """A line of the table for each step."""
    for before, row in zip([None, *rows], rows, strict=False):
        launches = [b.slice.end for b in row.boxes if b.slice.name.startswith("launch")]
        device = " to ".join(ms(time - view.start) for time in row.device_span)
        is_same = before is not None and before.side == row.side
        common = f"{ms(together(before, row))} ms" if before and is_same else ""
        launched = ms(max(launches) - view.start) if launches else ""
        yield [row.name, ms(row.start - view.start), launched, device,
               ms(row.end - view.start), common]  # fmt: skip


def steps_to_puml(trace: Trace, count: int) -> str:
    """The diagram's text.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    title = f"{creole(trace.loop)}: step under step\\n{creole(rhythm(rows))}"
    return draw_panels([RunPanel(steps_view(trace, rows))], title)
