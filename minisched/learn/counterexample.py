"""The trial up to where it goes wrong, drawn, with the offending step marked."""

from __future__ import annotations

from ..export.layout import View, make_view
from ..export.svg import PITCH, Frame, draw_lanes, draw_legend, draw_run
from ..export.views.axes import TimeAxis
from ..export.views.page import EDGE, Page, line, svg_text
from ..trace import Trace
from .figure import LessonFigure

LEFT, MOST_BEFORE = 168, 4  # pixels for the lanes' names; steps shown before the offending one
STYLE = (
    "<style>.wrong { fill: none; stroke: var(--bubble); stroke-width: 3 } "
    ".wrong-line { stroke: var(--bubble); stroke-width: 1.4; stroke-dasharray: 4 3 }</style>"
)


def draw_until(trace: Trace, step: int, title: str, flag: str = "") -> LessonFigure | None:
    """The last steps up to ``step``, outlined if it has a flag; None if nothing ever ran."""
    view = view_until(trace, step)
    if view is None:
        return None
    outlined = f"; step {step} is outlined" if flag else ""
    page = Page(title, f"{trace.loop} on the simulated device{outlined}")
    page.top += 18 if flag else 0
    scale = (EDGE - LEFT) / max(1, view.duration)
    frame = Frame(view, LEFT, EDGE, page.top, scale)
    page.add(STYLE, *draw_lanes(frame), *draw_run(frame))
    if flag:
        page.add(*_marks(frame, step, flag))
    x = TimeAxis(view.end, view.start, LEFT, EDGE)
    page.add(*x.draw(frame.bottom + 6))
    legend, page.top = draw_legend([view], frame.bottom + 54, EDGE)
    page.add(*legend)
    return LessonFigure(page.finish())


def view_until(trace: Trace, step: int) -> View | None:
    """From a few steps before ``step`` to the moment at which its tokens were processed."""
    mine = [item for item in trace.slices if item.step == step]
    ran = [item for item in trace.slices if item.name == "forward" and item.step <= step]
    if not mine or not ran:
        return None
    first = max(1, step - MOST_BEFORE)
    start = min((item.start for item in trace.slices if item.step == first), default=0)
    end = max(item.end for item in mine)
    return make_view(trace, 0 if first == 1 else start, end, first, step)


def _marks(frame: Frame, step: int, flag: str) -> list[str]:
    """An outline around the step's boxes on the device, and a flag above them."""
    drawn, left = [], float(EDGE)
    for box in frame.view.boxes:
        if box.slice.step == step and box.lane.side == "device" and box.slice.duration:
            x, width = frame.span(box.slice.start, box.slice.end)
            left = min(left, x)
            drawn.append(
                f'<rect class="wrong" x="{x:.1f}" y="{frame.y(box.lane) - 2:.1f}" '
                f'width="{width:.1f}" height="{PITCH - 10}" rx="3" data-wrong="{step}"/>'
            )
    anchor = "end" if left > (LEFT + EDGE) / 2 else "start"
    drawn.append(line("wrong-line", left, frame.top - 4, left, frame.bottom))
    drawn.append(svg_text(left, frame.top - 8, flag, "warn", anchor))
    return drawn
