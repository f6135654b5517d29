"""A broken law as a picture: the few steps around it, what did it in red, all else quiet.

It takes any ``checks/history.py:Offence``: a race, a wrong token, a leak. The picture stands alone,
follows the reader's system from light to dark, and is the same bytes for the same trace.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from textwrap import wrap
from xml.sax.saxutils import escape

from ..checks.history import Offence
from ..checks.overlap import forwards
from ..trace import Trace
from .layout import Box, Lane, View, boxes_of, make_view
from .svg import (
    BOX,
    RIGHT,
    WIDTH,
    Frame,
    char_width,
    definitions,
    draw_lanes,
    draw_legend,
    draw_run,
    left_of,
    style,
)
from .text import draw_axis, letters_of, margin_of, row
from .units import exact, ms, tick_step

# -- What a picture of a broken law shows: the few steps around it, and nothing that idles ---------

STEPS = 1.2  # shown before and after what did it


@dataclass(frozen=True)
class OffenceView:
    """A stretch of a run, the boxes that did it in order of time, and two with no edge."""

    view: View
    culprits: tuple[Box, ...]
    missing: tuple[Box, Box] | None
    waits: str = ""  # what of the second one has to wait, if not all of it

    @property
    def missing_words(self) -> str:
        """What the missing edge would say."""
        if self.missing is None:
            return ""
        first, second = (box.label for box in self.missing)
        if self.waits:
            return f"the {self.waits} in {second} must wait for {first}"
        return f"{second} does not wait for {first}"


def scene_of(trace: Trace, offence: Offence, around_ns: int | None = None) -> OffenceView:
    """The stretch from the first slice that did it to the last, and ``around_ns`` on either side.

    By default about one step. Where no slice is left that did it (what never ran has none), it is
    the whole run.

    Raises:
        ValueError: ``around_ns`` is negative.
    """
    if around_ns is not None and around_ns < 0:
        raise ValueError(f"around_ns is {around_ns}, but it must be at least 0 nanoseconds.")
    wanted = {*offence.slices, *(offence.missing or ())}
    culprits = {box.slice.id: box for box in boxes_of(trace) if box.slice.id in wanted}
    around = _around(trace) if around_ns is None else around_ns
    start = min((box.slice.start for box in culprits.values()), default=0) - around
    end = max((box.slice.end for box in culprits.values()), default=trace.end) + around
    start, end = max(0, start), max(1, min(trace.end, end))
    view = make_view(trace, start, max(start + 1, end))
    pair = [culprits[one] for one in offence.missing or () if one in culprits]
    missing = (pair[0], pair[1]) if len(pair) == 2 and pair[0] != pair[1] else None
    return OffenceView(_quiet(view, missing), tuple(culprits.values()), missing, offence.waits)


def _around(trace: Trace) -> int:
    """About one step: what lies between the starts of two forward passes."""
    starts = [item.start for item in forwards(trace)]
    gaps = [after - before for before, after in pairwise(starts)]
    return round(STEPS * median(gaps)) if gaps else trace.end


def _quiet(view: View, missing: tuple[Box, Box] | None) -> View:
    """Only lanes that have something; no idle time, and no edge where one is said to be missing."""
    used: set[Lane] = {box.lane for box in view.boxes}
    pair = {box.slice.id for box in missing or ()}
    arrows = (arrow for arrow in view.arrows if {arrow.src.slice.id, arrow.dst.slice.id} != pair)
    lanes = tuple(lane for lane in view.lanes if lane in used) or view.lanes
    return replace(view, lanes=lanes, arrows=tuple(arrows), bubbles=())


# -- What is around a run of which something is red: words, time axis, legend, and the paper ------
#
# Both kinds of pictures stand on it: a broken law (``offence.py``) and an exhibit of the museum.

MARGIN = 20  # pixels, left and right of what is said


def lines_of(sentence: str, size: float) -> list[str]:
    """A bold sentence in as few lines as it needs, all of about one length."""
    columns = int((WIDTH - 2 * MARGIN) / char_width(size, bold=True))
    lines = wrap(sentence, columns)
    while columns > 1 and len(narrower := wrap(sentence, columns - 1)) == len(lines):
        lines, columns = narrower, columns - 1
    return lines


def ticks(start: int, duration: int) -> range:
    """Round times, in nanoseconds, at most ten or so."""
    step = tick_step(duration)
    return range(-(-start // step) * step, start + duration + 1, step)


def grid(frame: Frame, duration: int) -> list[str]:
    """Lines at the times of an axis of this length, as far as the run goes."""
    view = frame.view
    return [
        f'<line class="grid" x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom}"/>'
        for x in (frame.x(at) for at in ticks(view.start, duration) if at <= view.end)
    ]


def axis(frame: Frame, duration: int, top: float, words: str = "time in ms") -> str:
    """The time axis, in milliseconds since the run began; ``words`` stand before it."""
    left, right, start = frame.left, frame.right, frame.view.start
    drawn = [f'<line class="axis" x1="{left:.0f}" y1="{top}" x2="{right}" y2="{top}"/>']
    for time in ticks(start, duration):
        x = left + (time - start) * frame.scale
        drawn.append(
            f'<line class="axis" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 5}"/>'
            f'<text class="small" x="{x:.1f}" y="{top + 18}" text-anchor="middle">'
            f"{exact(time)}</text>"
        )
    drawn.append(f'<text class="small faint" x="{MARGIN}" y="{top + 18}">{words}</text>')
    return "".join(drawn)


def red_legend(scene: OffenceView, top: float) -> tuple[list[str], float]:
    """What is red, as far as it occurs; and where the legend goes on."""
    drawn = []
    if scene.culprits:
        drawn.append(
            f'<rect class="red" x="21" y="{top - 10}" width="16" height="11" rx="2"/>'
            f'<text x="44" y="{top}">what did it, by number</text>'
        )
    if scene.missing:
        drawn.append(
            f'<path class="red-missing" d="M220 {top - 4}h26"/>'
            f'<text x="252" y="{top}">an edge that should be there, and is not</text>'
            f'<rect class="red-ghost" x="530" y="{top - 10}" width="16" height="11" rx="2"/>'
            f'<text x="553" y="{top}">the other order, which nothing forbids</text>'
        )
    return drawn, top + (24 if drawn else 0)


def document(drawn: list[str], height: float, title: str, *rules: str) -> str:
    """The whole file; ``rules`` are style elements beside those that every such picture has."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img">',
            f"<title>{escape(title)}</title>",
            style(), definitions(), *rules, red_style(),
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" '
            'rx="8"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )  # fmt: skip


# -- What is red in the picture of a broken law: a numbered frame for each slice, a missing edge

RED = ("#C8102E", "#FF7A85")  # on light and on dark paper; always with a number or a dash beside it


def red_style() -> str:
    """The rules for what is red and for what is quiet, on light and on dark paper."""
    light, dark = RED
    return (
        f"<style>\n:root {{ --red: {light}; --quiet: 0.42 }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ --red: {dark}; --quiet: 0.6 }} }}\n"
        ".quiet { opacity: var(--quiet) }\n"
        ".red { fill: none; stroke: var(--red); stroke-width: 3 }\n"
        ".red-missing { fill: none; stroke: var(--red); stroke-width: 2.2; "
        "stroke-dasharray: 6 4; marker-end: url(#head-red) }\n"
        ".red-ghost { fill: none; stroke: var(--red); stroke-width: 1.5; stroke-dasharray: 3 3 }\n"
        ".red-disc { fill: var(--red) } .on-red { fill: var(--paper); font-size: 11px; "
        "font-weight: 700 }\n"
        ".red-text { fill: var(--red); font-weight: 650 }\n</style>\n"
        '<defs><marker id="head-red" viewBox="0 0 8 8" refX="7.4" refY="4" markerWidth="9" '
        'markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">'
        '<path style="fill:var(--red)" d="M0 0.6L8 4L0 7.4z"/></marker></defs>'
    )


def draw_culprits(frame: Frame, scene: OffenceView) -> list[str]:
    """A frame around each slice that did it, and its number; what takes no time is a stroke."""
    drawn, numbers, free = [], [], {lane: 0.0 for lane in frame.view.lanes}
    for number, box in enumerate(scene.culprits, 1):
        x, width = frame.span(box.slice.start, box.slice.end)
        y, width = frame.y(box.lane), max(width, 3)
        drawn.append(
            f'<rect class="red" x="{x - 1:.1f}" y="{y - 1:.1f}" width="{width + 2:.1f}" '
            f'height="{BOX + 2}" rx="3" data-offence="{box.slice.id}">'
            f"<title>{number}: {escape(box.label)}</title></rect>"
        )
        at = max(x - 9, free[box.lane])
        free[box.lane] = at + 17
        numbers.append(disc(at, y - 5, number))
    return drawn + numbers


def draw_missing(frame: Frame, scene: OffenceView) -> list[str]:
    """A dashed arrow from the end of the one to the begin of the other, or to what it frees."""
    if scene.missing is None:
        return []
    first, second = scene.missing
    ready = second.slice.end if scene.waits else second.slice.start  # a free: by the end of it
    x1, x2 = frame.x(first.slice.end), frame.x(ready)
    y1, y2 = frame.y(first.lane), frame.y(second.lane)
    if first.lane == second.lane:
        y1 = y2 = y1 + BOX
        path = f"M{x1:.1f} {y1}C{x1:.1f} {y1 + 16} {x2:.1f} {y1 + 16} {x2:.1f} {y1}"
    else:
        y1, y2 = (y1 + BOX, y2) if y2 > y1 else (y1, y2 + BOX)
        path = f"M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"
    missing = f'data-missing="{first.slice.id} {second.slice.id}"'
    return [f'<path class="red-missing" {missing} d="{path}"/>', *draw_ghost(frame, scene)]


def draw_ghost(frame: Frame, scene: OffenceView) -> list[str]:
    """The other order, which is as possible: the second one where it did not run this time.

    That is from when the first one began, if it came behind it, and else behind the first one.
    """
    assert scene.missing is not None
    first, second = (box.slice for box in scene.missing)
    came_behind = second.start >= first.end
    start = first.start if came_behind else first.end
    x, width = frame.span(start, start + second.duration)
    y = frame.y(scene.missing[1].lane)
    return [f'<rect class="red-ghost" x="{x:.1f}" y="{y + 1:.1f}" width="{max(width, 3):.1f}" '
            f'height="{BOX - 2}" rx="2"/>']  # fmt: skip


def draw_missing_words(frame: Frame, scene: OffenceView, y: float) -> list[str]:
    """The same in words, below the lanes."""
    if scene.missing is None:
        return []
    text = f"missing: {scene.missing_words}"
    room = len(text) * char_width(12, bold=True)
    middle = sum(frame.x(at) for at in (scene.missing[0].slice.end, scene.missing[1].slice.start))
    x = max(frame.left, min(middle / 2 - room / 2, frame.right - room))
    return [f'<text class="red-text" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>']


def draw_list(scene: OffenceView, top: float) -> tuple[list[str], float]:
    """A line for each slice that did it: its number, and where and when it ran."""
    drawn = []
    for number, box in enumerate(scene.culprits, 1):
        drawn.append(disc(20, top - 4, number))
        drawn.append(f'<text x="44" y="{top}">{escape(about(box))}</text>')
        top += 20
    return drawn, top


def about(box: Box) -> str:
    """``sample 3 on Forward stream, 10.2 to 12.3 ms, for r0 r1``."""
    item = box.slice
    rids = f", for {' '.join(item.rids)}" if item.rids else ""
    return f"{box.label} on {box.lane.title}, {when(item.start)} to {when(item.end)} ms{rids}"


def when(time: int) -> str:
    """A moment in milliseconds; one that would be rounded to nothing in full."""
    return ms(time) if time >= 10_000 else exact(time)


def disc(x: float, y: float, number: int) -> str:
    """A number on a red disc, whose left edge is at ``x``."""
    return (
        f'<circle class="red-disc" cx="{x + 8:.1f}" cy="{y:.1f}" r="8"/>'
        f'<text class="on-red" x="{x + 8:.1f}" y="{y + 4:.1f}" text-anchor="middle">{number}</text>'
    )


# -- A broken law for a terminal: lanes over time, and ``!!`` where it was done --------------------

MARK = "!"


def to_text(
    trace: Trace, offence: Offence, around_ns: int | None = None, columns: int = 100
) -> str:
    """The sentence, the few steps around it, and a line for each slice that did it.

    Raises:
        ValueError: less than 60 columns, or ``around_ns`` is negative.
    """
    if columns < 60:
        raise ValueError(f"a picture needs at least 60 columns, but got {columns}.")
    scene = scene_of(trace, offence, around_ns)
    view, margin = scene.view, margin_of([scene.view])
    cells = columns - margin
    lines = [*wrap(offence.sentence, columns), ""]
    for lane in view.lanes:
        drawn = marked(row(view, lane, view.duration, cells), scene, lane, view.duration)
        lines.append(f"{lane.title:>{margin - 2}} │{drawn}".rstrip())
    lines += [*draw_axis(view.duration, cells, margin, view.start), ""]
    for box in scene.culprits:
        lines += wrap(f"{MARK * 2} {about(box)}", columns, subsequent_indent="   ")
    if scene.missing:
        lines += wrap(f"-> missing: {scene.missing_words}", columns, subsequent_indent="   ")
    return "\n".join([*lines, "", *_legend(scene, columns), ""]).replace("\N{NO-BREAK SPACE}", " ")


def marked(drawn: str, scene: OffenceView, lane: Lane, longest: int) -> str:
    """A lane with ``!!`` over the slices that did it; their step stays where there is room.

    ``drawn`` are the characters of ``longest`` nanoseconds.
    """
    glyphs = list(drawn)
    for box in scene.culprits:
        if box.lane != lane:
            continue
        start, end = scene.view.clip(box.slice.start, box.slice.end)
        first = min(start * len(glyphs) // longest, len(glyphs) - 2)
        last = max(first + 2, end * len(glyphs) // longest)
        name = str(box.step) if box.step and last - first >= len(str(box.step)) + 4 else ""
        glyphs[first:last] = f"{name:{MARK}^{last - first}}"
    return "".join(glyphs)


def _legend(scene: OffenceView, columns: int) -> list[str]:
    names = [box.slice.name for box in scene.view.boxes if box.slice.duration]
    entries = [letters_of(names), f"{MARK * 2}\N{NO-BREAK SPACE}what did it", "numbers: steps"]
    return wrap("   ".join(filter(None, entries)), columns)


def draw(trace: Trace, offence: Offence, around_ns: int | None = None) -> str:
    """The picture; ``around_ns`` nanoseconds before and after what did it, by default about a step.

    Raises:
        ValueError: ``around_ns`` is negative.
    """
    scene = scene_of(trace, offence, around_ns)
    drawn, top = _heading(trace, offence)
    left = left_of([scene.view])
    duration = scene.view.duration
    scale = (WIDTH - left - RIGHT) / duration
    frame = Frame(scene.view, left, WIDTH - RIGHT, top + 12, scale)
    bottom = frame.bottom + (20 if scene.missing else 4)
    drawn += [*draw_lanes(frame), *grid(frame, duration)]
    drawn += ['<g class="quiet">', *draw_run(frame), "</g>"]
    loud = replace(scene.view, boxes=scene.culprits, arrows=())
    drawn += draw_run(replace(frame, view=loud))
    drawn += [*draw_missing(frame, scene), *draw_culprits(frame, scene)]
    drawn += draw_missing_words(frame, scene, frame.bottom + 12)
    drawn.append(axis(frame, duration, bottom))
    names, top = draw_list(scene, bottom + 48)
    red, top = red_legend(scene, top + 6)
    legend, top = draw_legend([scene.view], top, WIDTH - RIGHT)
    return document([*drawn, *names, *red, *legend], top + 8, offence.sentence)


def _heading(trace: Trace, offence: Offence) -> tuple[list[str], float]:
    """The sentence, then which run it is; and where that ends."""
    drawn, top = [], 30.0
    for line in lines_of(offence.sentence, 13.5):
        drawn.append(f'<text class="run" x="{MARGIN}" y="{top}">{escape(line)}</text>')
        top += 19
    clock = "simulated time" if trace.clock == "virtual" else "measured time"
    about = f"{trace.loop}: {trace.what_ran}, {clock}"
    drawn.append(f'<text class="faint" x="{MARGIN}" y="{top + 2}">{escape(about)}</text>')
    return drawn, top + 8
