"""A broken law as a picture: the few steps around it, what did it in red, all else quiet.

It takes any ``checks/offence.py:Offence``: a race, a wrong token, a leak. The picture stands alone,
follows the reader's system from light to dark, and is the same bytes for the same trace.
"""

from __future__ import annotations

from dataclasses import replace
from textwrap import wrap
from xml.sax.saxutils import escape

from ..checks.offence import Offence
from ..trace import Trace
from .layout import View
from .offence_marks import draw_culprits, draw_list, draw_missing, draw_missing_words, red_style
from .offence_view import Scene, scene_of
from .svg import RIGHT, WIDTH, left_of
from .svg_legend import draw_legend
from .svg_run import Frame, draw_lanes, draw_run
from .svg_style import char_width, definitions, style
from .units import exact, tick_step


def draw(trace: Trace, offence: Offence, around_ns: int | None = None) -> str:
    """The picture; ``around_ns`` nanoseconds before and after what did it, by default about a step.

    Raises:
        ValueError: ``around_ns`` is negative.
    """
    scene = scene_of(trace, offence, around_ns)
    drawn, top = _heading(trace, scene.view, offence)
    left = left_of([scene.view])
    scale = (WIDTH - left - RIGHT) / scene.view.duration
    frame = Frame(scene.view, left, WIDTH - RIGHT, top + 12, scale)
    bottom = frame.bottom + (20 if scene.missing else 4)
    drawn += [*draw_lanes(frame), *_grid(frame)]
    drawn += ['<g class="quiet">', *draw_run(frame), "</g>"]
    loud = replace(scene.view, boxes=scene.culprits, arrows=())
    drawn += draw_run(replace(frame, view=loud))
    drawn += [*draw_missing(frame, scene), *draw_culprits(frame, scene)]
    drawn += [*draw_missing_words(frame, scene, frame.bottom + 12), _axis(frame, bottom)]
    names, top = draw_list(scene, bottom + 48)
    red, top = _red_legend(scene, top + 6)
    legend, top = draw_legend([scene.view], top, WIDTH - RIGHT)
    return _document([*drawn, *names, *red, *legend], top + 8, offence)


def _heading(trace: Trace, view: View, offence: Offence) -> tuple[list[str], float]:
    """The sentence, then which run it is; and where that ends."""
    columns = int((WIDTH - 40) / char_width(13.5, bold=True))
    lines, top = wrap(offence.sentence, columns), 30.0
    drawn = []
    for line in lines:
        drawn.append(f'<text class="run" x="20" y="{top}">{escape(line)}</text>')
        top += 19
    clock = "simulated time" if trace.clock == "virtual" else "measured time"
    about = f"{trace.loop}: {trace.model} model on {trace.device}, {clock}"
    drawn.append(f'<text class="faint" x="20" y="{top + 2}">{escape(about)}</text>')
    return drawn, top + 8


def _ticks(view: View) -> range:
    step = tick_step(view.duration)
    return range(-(-view.start // step) * step, view.end + 1, step)


def _grid(frame: Frame) -> list[str]:
    xs = (frame.x(time) for time in _ticks(frame.view))
    return [
        f'<line class="grid" x1="{x:.1f}" y1="{frame.top}" x2="{x:.1f}" y2="{frame.bottom}"/>'
        for x in xs
    ]


def _axis(frame: Frame, top: float) -> str:
    """Milliseconds since the run began."""
    drawn = [f'<line class="axis" x1="{frame.left:.0f}" y1="{top}" x2="{frame.right}" y2="{top}"/>']
    for time in _ticks(frame.view):
        x = frame.x(time)
        drawn.append(
            f'<line class="axis" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{top + 5}"/>'
            f'<text class="small" x="{x:.1f}" y="{top + 18}" text-anchor="middle">'
            f"{exact(time)}</text>"
        )
    drawn.append(f'<text class="small faint" x="20" y="{top + 18}">time in ms</text>')
    return "".join(drawn)


def _red_legend(scene: Scene, top: float) -> tuple[list[str], float]:
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
        )
    return drawn, top + (24 if drawn else 0)


def _document(drawn: list[str], height: float, offence: Offence) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            f'width="{WIDTH}" height="{height:.0f}" role="img">',
            f"<title>{escape(offence.sentence)}</title>",
            style(),
            definitions(),
            red_style(),
            f'<rect class="paper" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:.0f}" '
            'rx="8"/>',
            *drawn,
            "</svg>",
            "",
        ]
    )
