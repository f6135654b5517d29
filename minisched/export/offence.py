"""A broken law as a picture: the few steps around it, what did it in red, all else quiet.

It takes any ``checks/history.py:Offence``: a race, a wrong token, a leak. The picture stands alone,
follows the reader's system from light to dark, and is the same bytes for the same trace.
"""

from __future__ import annotations

from dataclasses import replace
from xml.sax.saxutils import escape

from ..checks.history import Offence
from ..trace import Trace
from .offence_marks import draw_culprits, draw_list, draw_missing, draw_missing_words
from .offence_paper import MARGIN, axis, document, grid, lines_of, red_legend
from .offence_view import scene_of
from .svg import RIGHT, WIDTH, left_of
from .svg_legend import draw_legend
from .svg_run import Frame, draw_lanes, draw_run


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
