"""Runs one above the other on one time axis, as a picture that stands alone.

It follows the reader's system from light to dark and brings its own paper, so that it is legible
as an ``<img>`` on any page. The same traces give the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from ..checks.overlap import OverlapReport, measure
from ..trace import Trace
from .layout import View
from .loops_shown import loops_shown
from .svg_legend import draw_legend
from .svg_run import PITCH, Frame, draw_lanes, draw_run
from .svg_style import char_width, definitions, style
from .svg_waits import draw_flags, has_waits, wait_style
from .units import MILLISECOND, ms, tick_step
from .window import steady_views, whole_run
from .words_busy import busy

WIDTH, RIGHT = 900, 24  # pixels: the page, its right margin
HEADING = 30  # above the lanes of each run


def to_svg(traces: Sequence[Trace], steps: int = 3, whole: bool = False, title: str = "") -> str:
    """The picture of a few settled steps of each run, or of the whole runs.

    The first run is the baseline that speed-ups refer to.

    Raises:
        ValueError: there is no trace.
    """
    if not traces:
        raise ValueError("a picture needs at least one trace, but got 0.")
    views = [whole_run(t) for t in traces] if whole else steady_views(list(traces), steps)
    return views_to_svg(views, title)


def views_to_svg(views: list[View], title: str = "") -> str:
    """The picture of what was chosen of each run; the first run is the baseline."""
    longest = max(1, *(view.duration for view in views))
    left = left_of(views)
    scale = (WIDTH - left - RIGHT) / longest
    reports = [measure(view.trace) for view in views]
    drawn, top = [_heading(views, title)], 62.0
    for view, report in zip(views, reports, strict=True):
        frame = Frame(view, left, WIDTH - RIGHT, top + HEADING, scale)
        drawn += [*draw_lanes(frame), *_grid(frame, longest)]
        drawn += [_run_title(frame, report, reports[0]), *draw_run(frame), *draw_flags(frame)]
        drawn += _end(frame, views[0])
        top = frame.bottom + 14
    drawn += [_axis(left, top, longest, scale)]
    legend, top = draw_legend(views, top + 46, WIDTH - RIGHT)
    return _document([*drawn, *legend], top + 8, views, title)


def left_of(views: Sequence[View]) -> float:
    """Pixels for the longest name of a lane."""
    widths = (len(f"{lane.name} {lane.side}") for view in views for lane in view.lanes)
    return max(168, round(22 + max(widths) * char_width(12)))


def _document(drawn: list[str], height: float, views: list[View], title: str) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img">',
            f"<title>{escape(title or _about(views))}</title>",
            style(),
            definitions(),
            *([wait_style()] if has_waits(views) else []),
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" '
            'rx="8"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )


def _about(views: list[View]) -> str:
    """What is shown, in words."""
    loops = loops_shown([view.trace for view in views])
    if _is_whole(views[0]):
        return f"{loops}: the whole run"
    rows = max((len(box.slice.rids) for box in views[0].boxes), default=0)
    count = views[0].last_step - views[0].first_step + 1
    return f"{loops}: the same {count} decode steps of {rows} requests"


def _is_whole(view: View) -> bool:
    return view.start == 0 and view.end == view.trace.end


def _heading(views: list[View], title: str) -> str:
    trace = views[0].trace
    clock = "simulated time" if trace.clock == "virtual" else "measured time"
    about = f"{trace.what_ran}, {clock}"
    if not _is_whole(views[0]):
        about += "; 0 is when the device starts the first of these steps"
    return (
        f'<text class="title" x="20" y="31">{escape(title or _about(views))}</text>'
        f'<text class="faint" x="20" y="50">{escape(about)}</text>'
    )


def _run_title(frame: Frame, report: OverlapReport, base: OverlapReport) -> str:
    y, faster = frame.top - 9, ""
    if report is not base and report.makespan_ns:
        factor = base.makespan_ns / report.makespan_ns
        faster = f', <tspan class="bold strong">speed-up {factor:.2f}×</tspan>'
    return (
        f'<text class="run" x="20" y="{y}">{escape(report.loop)}</text>'
        f'<text class="faint" x="{WIDTH - RIGHT}" y="{y}" text-anchor="end">whole run: '
        f"{report.steps} steps in {ms(report.makespan_ns)} ms, "
        f'<tspan class="bold strong">{busy(report)}</tspan>'
        f"{faster}</text>"
    )


def _grid(frame: Frame, longest: int) -> list[str]:
    step = tick_step(longest)
    return [
        f'<line class="grid" x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom}"/>'
        for x in (frame.left + at * frame.scale for at in range(0, longest + 1, step))
    ]


def _end(frame: Frame, base: View) -> list[str]:
    """Where the run has done its steps, and how much sooner than the baseline."""
    view, y = frame.view, frame.top + PITCH * 1.5
    x = frame.left + view.duration * frame.scale
    there = frame.left + base.duration * frame.scale
    drawn = [f'<line class="end" x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom}"/>']
    saved = base.duration - view.duration
    factor = base.duration / max(1, view.duration)
    note = f"{ms(view.duration)} instead of {ms(base.duration)} ms: {factor:.2f}×"
    if there - x < len(note) * char_width(11) + 8:
        return drawn
    middle = (x + there) / 2
    drawn.append(
        f'<path class="saved" d="M{there:.1f} {y}L{x + 2:.1f} {y}" marker-end="url(#head-ink)"/>'
        f'<path class="saved" d="M{there:.1f} {y - 6}V{y + 6}"/>'
        f'<text class="bold" x="{middle:.1f}" y="{y - 8}" text-anchor="middle">{ms(saved)} ms saved'
        f'</text><text class="faint small" x="{middle:.1f}" y="{y + 17}" text-anchor="middle">'
        f"{note}</text>"
    )
    return drawn


def _axis(left: float, top: float, longest: int, scale: float) -> str:
    """The shared time axis, in milliseconds."""
    drawn = [f'<line class="axis" x1="{left:.0f}" y1="{top}" x2="{WIDTH - RIGHT}" y2="{top}"/>']
    for at in range(0, longest + 1, tick_step(longest)):
        x = left + at * scale
        drawn.append(
            f'<line class="axis" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 5}"/>'
            f'<text class="small" x="{x:.1f}" y="{top + 18}" text-anchor="middle">'
            f"{at / MILLISECOND:g}</text>"
        )
    drawn.append(f'<text class="small faint" x="20" y="{top + 18}">time in ms</text>')
    return "".join(drawn)
