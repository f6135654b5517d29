"""An exhibit as a picture: the run with the bug, what did it in red, and below it without.

Both runs have the same requests and one time axis. The picture stands alone and follows the
reader's system from light to dark; the same code gives the same bytes.
"""

from __future__ import annotations

from dataclasses import replace

from ..checks.judge import Verdict
from ..checks.offence import Offence
from ..export.layout import View, make_view
from ..export.offence_marks import draw_culprits, draw_list, draw_missing, draw_missing_words
from ..export.offence_paper import axis, document, grid, red_legend
from ..export.offence_view import Scene, scene_of
from ..export.svg import RIGHT, WIDTH, left_of
from ..export.svg_legend import draw_legend
from ..export.svg_run import Frame, draw_lanes, draw_run
from ..export.svg_waits import draw_flags, wait_style
from ..export.units import MILLISECOND
from .exhibit import Exhibit
from .offence import exhibit_offence
from .paper import heading, title_of_run
from .text_picture import text_picture

LONGEST = 110 * MILLISECOND  # what of a run can be read at this width
HEADING = 34  # above the lanes of each run


def draw(exhibit: Exhibit) -> str:
    """The picture of one bug.

    Raises:
        ValueError: the bug is not caught, so there is nothing to show in red.
    """
    scene, healthy, offence = seen(exhibit)
    views = (scene.view, healthy)
    longest, left = max(view.duration for view in views), left_of(views)
    scale = (WIDTH - left - RIGHT) / longest
    drawn, top = heading(exhibit.title, f"{exhibit.law}: {offence.sentence}")
    for view in views:
        frame = Frame(view, left, WIDTH - RIGHT, top + HEADING, scale)
        drawn += [*draw_lanes(frame), *grid(frame, longest), *draw_run(frame), *draw_flags(frame)]
        drawn.append(title_of_run(frame, view is scene.view, exhibit))
        top = frame.bottom + 12
        if view is scene.view:
            drawn += in_red(frame, scene)
            top += 14 if scene.missing else 0
    drawn.append(axis(frame, longest, top, "simulated time in ms"))
    names, top = draw_list(scene, top + 50)
    red, top = red_legend(scene, top + 6)
    legend, top = draw_legend(list(views), top, WIDTH - RIGHT)
    return document([*drawn, *names, *red, *legend], top + 8, exhibit.title, wait_style())


def in_red(frame: Frame, scene: Scene) -> list[str]:
    """What did it."""
    words = draw_missing_words(frame, scene, frame.bottom + 12)
    return [*draw_missing(frame, scene), *draw_culprits(frame, scene), *words]


def exhibit_lines(exhibit: Exhibit, columns: int = 100) -> list[str]:
    """The same as text.

    Raises:
        ValueError: the bug is not caught, or there are less than 60 columns.
    """
    scene, healthy, _ = seen(exhibit)
    return text_picture(scene, healthy, columns)


def seen(exhibit: Exhibit) -> tuple[Scene, View, Offence]:
    """What of the two runs is shown, and what did it: the whole runs if they are not too long.

    Of a long one it ends a little after the last slice that did it. Where the device idles is not
    what this picture is about.
    """
    bug, healthy = exhibit.with_bug(), exhibit.healthy()
    offence = exhibit_offence(exhibit, bug)
    ends = [item.end for item in bug.trace.slices if item.id in offence.slices]
    last = min(bug.trace.end, max(ends, default=0) + LONGEST // 8)
    start = max(0, last - LONGEST)
    end = start + LONGEST
    if bug.trace.end > end:
        end = min(end, max(last, healthy.trace.end))
    view = stretch(bug, start, end)
    scene = replace(scene_of(bug.trace, offence), view=view)
    if scene.missing:
        pair = {box.slice.id for box in scene.missing}
        arrows = (one for one in view.arrows if {one.src.slice.id, one.dst.slice.id} != pair)
        scene = replace(scene, view=replace(view, arrows=tuple(arrows)))
    return scene, stretch(healthy, start, end), offence


def stretch(verdict: Verdict, start: int, latest: int) -> View:
    """A part of a run, as far as it goes."""
    end = max(start + 1, min(verdict.trace.end, latest))
    return replace(make_view(verdict.trace, start, end), bubbles=())
