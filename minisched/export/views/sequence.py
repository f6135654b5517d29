"""Who tells whom, for a terminal: an ordered list, with an arrow for each message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from textwrap import wrap
from xml.sax.saxutils import escape

from ...trace import Trace
from ..layout import Arrow, Box, IdleStretch, Lane, View, meaning, says
from ..palette import ARROWS
from ..scene import about_run
from ..scene_text import COLUMNS
from ..svg import FLAG, about, box_class, char_width, draw_legend, has_waits, wait_style, waits_of
from ..units import ms
from .page import EDGE, Page, band, line, path, svg_text
from .shown_steps import shown

# -- Where everything lies in a sequence diagram: a lifeline a lane, time running down -------------
#
# Time is in order but not to scale: what is short gets the room that its name needs, and whatever
# began before something else stands above it.

LEFT, HIGH, LEAST_BOX, LEAST_GAP = 70, 330, 19, 4  # pixels
LEAST_WIDTH, BETWEEN = 84, 24  # of a box; beside it, where lifelines stand close


@dataclass(frozen=True)
class Lifelines:
    """Pixels for lanes and moments. ``heights`` is where each moment of the run lies."""

    view: View
    heights: dict[int, float]

    @property
    def pitch(self) -> float:
        """From lifeline to lifeline."""
        return (EDGE - LEFT) / len(self.view.lanes)

    @property
    def width(self) -> float:
        """Of a box."""
        return max(0.5 * self.pitch, min(self.pitch - BETWEEN, LEAST_WIDTH))

    def x(self, lane: Lane) -> float:
        """The middle of a lane."""
        return LEFT + (self.view.lanes.index(lane) + 0.5) * self.pitch

    def y(self, time: int) -> float:
        """A moment of the run, kept inside the view."""
        return self.heights[min(max(time, self.view.start), self.view.end)]

    @property
    def bottom(self) -> float:
        """Where the view ends."""
        return self.heights[self.view.end]


def lay_out(view: View, top: float) -> Lifelines:
    """A height for every moment at which something begins or ends."""
    spans = [(box.slice.start, box.slice.end) for box in view.boxes if box.slice.duration]
    spans += [(bubble.start, bubble.end) for bubble in view.bubbles]
    spans = [(max(start, view.start), min(end, view.end)) for start, end in spans]
    moments = {view.start, view.end, *(time for span in spans for time in span)}
    moments |= {arrow.start for arrow in view.arrows} | {arrow.end for arrow in view.arrows}
    inside = sorted(time for time in moments if view.start <= time <= view.end)
    heights = {inside[0]: top}
    began: dict[int, int] = {}  # for each end the latest start: it needs the most room
    for start, end in spans:
        if start < end:
            began[end] = max(start, began.get(end, start))
    for before, time in pairwise(inside):
        gap = max(LEAST_GAP, (time - before) * HIGH / max(1, view.duration))
        heights[time] = heights[before] + gap
        if time in began:
            heights[time] = max(heights[time], heights[began[time]] + LEAST_BOX)
    return Lifelines(view, heights)


# -- The boxes of a sequence diagram: what each lane does, and where a device idles ----------------


def boxes(lines: Lifelines) -> Iterator[str]:
    """Every slice that takes time."""
    return (_box(lines, box) for box in lines.view.boxes if box.slice.duration > 0)


def labels(lines: Lifelines) -> Iterator[str]:
    """What they are, over the arrows that cross them."""
    for box in lines.view.boxes:
        if box.slice.duration > 0:
            yield from _label(lines, box)


def bubbles(lines: Lifelines) -> Iterator[str]:
    """Where a device idles, hatched."""
    for bubble in lines.view.bubbles:
        yield from _bubble(lines, bubble)


def _box(lines: Lifelines, box: Box) -> str:
    item, kind = box.slice, box_class(box.slice.name)
    top, bottom, middle = lines.y(item.start), lines.y(item.end), lines.x(box.lane)
    return (
        f'<rect class="box {kind}" x="{middle - lines.width / 2:.1f}" y="{top:.1f}" '
        f'width="{lines.width:.1f}" height="{max(1.0, bottom - top):.1f}" rx="2" '
        f'data-id="{item.id}" data-lane="{box.lane.key}">'
        f"<title>{escape(box.label)}, {ms(item.start)} to {ms(item.end)} ms</title></rect>"
    )


def _label(lines: Lifelines, box: Box) -> Iterator[str]:
    """Name and step, and how long where there is room."""
    item, kind = box.slice, box_class(box.slice.name)
    top, bottom, middle = lines.y(item.start), lines.y(item.end), lines.x(box.lane)
    words = [box.label if fits(box.label, lines.width) else item.name]
    if bottom - top >= 32:
        words.append(f"{ms(item.duration)} ms")
    for at, said in enumerate(words):
        if bottom - top >= 13 and fits(said, lines.width):
            y = (top + bottom) / 2 + 4 + 13 * (at - (len(words) - 1) / 2)
            yield svg_text(middle, y, said, f"on-{kind}", "middle")


def _bubble(lines: Lifelines, bubble: IdleStretch) -> Iterator[str]:
    top, bottom, middle = lines.y(bubble.start), lines.y(bubble.end), lines.x(bubble.lane)
    kind = "waited" if bubble.reason else "bubble"
    idle = ms(bubble.end - bubble.start)
    yield (
        f'<rect class="{kind}" x="{middle - lines.width / 2:.1f}" y="{top:.1f}" '
        f'width="{lines.width:.1f}" height="{max(1.0, bottom - top):.1f}">'
        f"<title>bubble: {idle} ms {escape(bubble.reason)}</title></rect>"
    )
    if bottom - top >= 18:
        said = f"{bubble.reason or 'idle'} {idle} ms"
        room = len(said) * char_width(11, bold=True) + 6
        y = (top + bottom) / 2
        if room <= lines.width:
            yield (
                f'<rect class="halo" x="{middle - room / 2:.1f}" y="{y - 8:.1f}" '
                f'width="{room:.1f}" height="15" rx="3"/>'
            )
            yield svg_text(middle, y + 4, said, "waited-for" if bubble.reason else "idle", "middle")


def fits(words: str, width: float) -> bool:
    """Whether small text fits."""
    return len(words) * char_width(11) + 2 <= width


# -- The arrows of a sequence diagram, each with what it says where there is room ------------------

BOW = 20  # pixels: how far an arrow within a lane swings out, to the left
Place = tuple[float, float, float]  # the middle of a text, its line, and its width


@dataclass
class Messages:
    """Every edge of the view; texts that would lie on one another are left to the hover."""

    lines: Lifelines
    taken: list[Place] = field(default_factory=list)

    def draw(self) -> Iterator[str]:
        """The arrows, then their texts."""
        yield from (self._arrow(arrow) for arrow in self.lines.view.arrows)
        for arrow in self.lines.view.arrows:
            yield from self._words(arrow)

    def _arrow(self, arrow: Arrow) -> str:
        kind = arrow.brings if arrow.brings in ARROWS else "launch"
        x1, y1, x2, y2 = self._ends(arrow)
        d = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
        if arrow.is_level:
            y1, y2 = y1 - 6, y2 + 8
            d = f"M{x1:.1f} {y1:.1f}C{x1 - BOW} {y1:.1f} {x1 - BOW} {y2:.1f} {x1:.1f} {y2:.1f}"
        return path(f"arrow {kind}", d, meaning(arrow), src=arrow.src.slice.id,
                    dst=arrow.dst.slice.id)  # fmt: skip

    def _ends(self, arrow: Arrow) -> tuple[float, float, float, float]:
        """From the edge of one box to the edge of the other."""
        lines, half = self.lines, self.lines.width / 2
        x1, x2 = lines.x(arrow.src.lane), lines.x(arrow.dst.lane)
        y1, y2 = lines.y(arrow.start), lines.y(arrow.end)
        if arrow.is_level:
            return x1 - half, y1, x1 - half, y2
        return (x1 + half, y1, x2 - half, y2) if x2 > x1 else (x1 - half, y1, x2 + half, y2)

    def _words(self, arrow: Arrow) -> Iterator[str]:
        """Beside the box it leaves, on the way; in short where there is less room."""
        middle, y, room = self._place(arrow)
        for words in (says(arrow), says(arrow).replace(" for ", " ").replace(" of ", " ")):
            place = (middle, y, len(words) * char_width(11))
            if place[2] <= room and not any(_touch(place, other) for other in self.taken):
                self.taken.append(place)
                yield svg_text(middle, y, words, "said", "middle")
                return

    def _place(self, arrow: Arrow) -> Place:
        """Where there is room for a text: the gap beside the box."""
        x1, y1, x2, y2 = self._ends(arrow)
        gap = self.lines.pitch - self.lines.width
        if arrow.is_level:
            room = gap - 0.8 * BOW
            return x1 - 0.8 * BOW - room / 2, (y1 + y2) / 2 + 5, room
        middle = x1 + (gap / 2 if x2 > x1 else -gap / 2)
        return middle, y1 + (y2 - y1) * abs(middle - x1) / abs(x2 - x1) - 4, gap - 4


def _touch(one: Place, other: Place) -> bool:
    near = abs(one[0] - other[0]) < (one[2] + other[2]) / 2
    return near and abs(one[1] - other[1]) < 11


# -- Who tells whom, in order: host and streams as lifelines, time running down --------------------

STYLE = (
    "<style>.said { font-size: 11px; stroke: var(--lane); stroke-width: 3px; paint-order: stroke }"
    "\n.life { stroke: var(--faint); stroke-dasharray: 4 4 } .begins { stroke: var(--faint) }"
    "\n.box.wait { fill: var(--lane) }</style>"
)
TITLE = "who tells whom, in order"
HEAD = 46  # pixels for the names of the lifelines


def draw_sequence(trace: Trace, count: int) -> str:
    """The picture of ``count`` settled steps.

    Raises:
        NothingToShow: no step ran.
    """
    view = shown(trace, count)
    page = Page(
        f"{trace.loop}: {TITLE}",
        about_run(trace, "time runs down, in order but not to scale"),
    )
    lines = lay_out(view, page.top + HEAD)
    page.add(STYLE, *([wait_style()] if has_waits([view]) else []))
    page.add(*_lifelines(lines, page.top - 10), *_begins(lines), *_clock(lines))
    page.add(*bubbles(lines), *boxes(lines), *_flags(lines))
    page.add(*Messages(lines).draw(), *labels(lines))
    legend, page.top = draw_legend([view], lines.bottom + 34, EDGE)
    page.add(*legend)
    return page.finish()


def _lifelines(lines: Lifelines, top: float) -> Iterator[str]:
    """A background for each side, a name and a dashed line for each lane."""
    for side in ("host", "device"):
        lanes = [lane for lane in lines.view.lanes if lane.side == side]
        if lanes:
            left = lines.x(lanes[0]) - lines.pitch / 2 + 3
            width = lines.pitch * len(lanes) - 6
            yield band(left, top, width, lines.bottom - top + 8)
            yield svg_text(left + width / 2, top + 13, side, "small faint", "middle")
    for lane in lines.view.lanes:
        x = lines.x(lane)
        for at, words in enumerate(wrap(lane.name, int(lines.pitch / char_width(12)))):
            yield svg_text(x, top + 29 + 13 * at, words, "bold", "middle", lane=lane.key)
        yield line("life", x, top + HEAD + 4, x, lines.bottom + 6)


def _begins(lines: Lifelines) -> Iterator[str]:
    """A line where the first device begins with a step."""
    first = next((lane for lane in lines.view.lanes if _is_first(lines.view, lane.key)), None)
    for box in lines.view.boxes:
        item = box.slice
        if item.name == "forward" and box.lane == first and item.start >= lines.view.start:
            y = lines.y(item.start)
            yield line("begins", LEFT - 8, y, EDGE, y, begins=box.step)
            yield svg_text(EDGE - 2, y - 4, f"step {box.step} begins", "said", "end")


def _is_first(view: View, key: str) -> bool:
    return any(box.lane.key == key and box.slice.name == "forward" for box in view.boxes)


def _clock(lines: Lifelines) -> Iterator[str]:
    """Milliseconds since the view's start, wherever there is room for them."""
    yield svg_text(LEFT - 12, lines.heights[lines.view.start] - 16, "ms", "small faint", "end")
    free = 0.0
    for time, y in lines.heights.items():
        if y >= free:
            yield svg_text(LEFT - 12, y + 4, ms(time - lines.view.start), "small faint", "end")
            free = y + 14


def _flags(lines: Lifelines) -> Iterator[str]:
    """A flag on the first lifeline where the loop decided that an op waits."""
    x = lines.x(lines.view.lanes[0]) - lines.width / 2 - 6
    times = list(lines.heights)
    for mark in waits_of(lines.view):
        nearest = min(times, key=lambda time: abs(time - mark.time))
        said = f"{about(mark)} at {ms(mark.time)} ms"
        yield path("flag", f"M{x:.1f} {lines.heights[nearest]:.1f}{FLAG}", said, mark="wait")


def write_sequence(trace: Trace, count: int, columns: int = COLUMNS) -> str:
    """The list of ``count`` settled steps, in order of time.

    Raises:
        NothingToShow: no step ran.
    """
    view = shown(trace, count)
    about = about_run(trace, f"steps {view.first_step} to {view.last_step}, {ms(view.duration)} ms")
    margin = max(len(lane.name) for lane in view.lanes)
    lines = [*wrap(f"{trace.loop}: {TITLE}", columns), *wrap(about, columns), ""]
    lines.append(f"         ms  {'who':<{margin}}  what")
    for line_ in _lines(view, margin):
        indent = " " * (margin + 15)
        lines += wrap(line_, columns, subsequent_indent=indent) if len(line_) > columns else [line_]
    return "\n".join([*lines, ""])


def _lines(view: View, margin: int) -> Iterator[str]:
    """A numbered line a slice, and below it what it tells whom."""
    told: dict[int, list[Arrow]] = {}
    for arrow in view.arrows:
        told.setdefault(arrow.src.slice.id, []).append(arrow)
    boxes = [box for box in view.boxes if box.slice.duration or box.slice.id in told]
    for number, box in enumerate(boxes, 1):
        yield f"{number:3}. {_when(view, box):>6}  {box.lane.name:<{margin}}  {_what(box)}"
        for arrow in told.get(box.slice.id, []):
            yield " " * (margin + 15) + f"└──▶ {_whom(arrow)}: {meaning(arrow)}"


def _when(view: View, box: Box) -> str:
    """Since the view's start; what began before that has no time."""
    return "before" if box.slice.start < view.start else ms(box.slice.start - view.start)


def _what(box: Box) -> str:
    return f"{box.label} ({ms(box.slice.duration)} ms)"


def _whom(arrow: Arrow) -> str:
    return f"itself, {arrow.dst.label}" if arrow.is_level else f"{arrow.dst.lane.name}"
