"""An exhibit as a picture: the run with the bug, what did it in red, and below it without.

Both runs have the same requests and one time axis. The picture stands alone and follows the
reader's system from light to dark; the same code gives the same bytes.
"""

from __future__ import annotations

from dataclasses import replace

from ..checks.judge import Verdict
from ..checks.offence import Offence
from ..export.layout import View, make_view
from ..export.svg import left_of
from ..export.svg_legend import draw_legend
from ..export.svg_run import Frame, draw_lanes, draw_run
from ..export.svg_waits import draw_flags
from ..export.units import MILLISECOND
from .exhibit import Exhibit
from .marks import draw_offence, red_legend
from .offence import offence_of
from .paper import RIGHT, WIDTH, axis, document, grid, heading, title_of_run
from .text_picture import text_picture

LONGEST = 110 * MILLISECOND  # what of a run can be read at this width
HEADING = 34  # above the lanes of each run


def draw(exhibit: Exhibit) -> str:
    """The picture of one bug.

    Raises:
        ValueError: the bug is not caught, so there is nothing to show in red.
    """
    views, offence = seen(exhibit)
    longest = max(1, *(view.duration for view in views))
    left = left_of(views)
    scale = (WIDTH - left - RIGHT) / longest
    drawn, top = heading(exhibit.title, f"{exhibit.law}: {offence.sentence}")
    for view, is_bug in zip(views, (True, False), strict=True):
        frame = Frame(view, left, WIDTH - RIGHT, top + HEADING, scale)
        drawn += [*draw_lanes(frame), *grid(frame), *draw_run(frame), *draw_flags(frame)]
        drawn.append(title_of_run(frame, is_bug, exhibit))
        drawn += draw_offence(frame, offence) if is_bug else []
        top = frame.bottom + 12
    drawn.append(axis(left, top, views[0].start, longest, scale))
    drawn.append(red_legend(20, top + 46, has_missing=bool(offence.missing)))
    legend, top = draw_legend(views, top + 70, WIDTH - RIGHT)
    return document([*drawn, *legend], top + 8, exhibit.title)


def lines_of(exhibit: Exhibit, columns: int = 100) -> list[str]:
    """The same as text.

    Raises:
        ValueError: the bug is not caught, or there are less than 60 columns.
    """
    return text_picture(*seen(exhibit), columns)


def seen(exhibit: Exhibit) -> tuple[list[View], Offence]:
    """What of the two runs is shown, and what did it."""
    bug = exhibit.with_bug()
    offence = offence_of(exhibit, bug)
    return views_of(bug, exhibit.healthy(), offence), offence


def views_of(bug: Verdict, healthy: Verdict, offence: Offence) -> list[View]:
    """The same stretch of both runs, without what idles: the whole if it is not too long.

    Of a long one it ends a little after the last slice that did it.
    """
    ends = [item.end for item in bug.trace.slices if item.id in offence.slices]
    last = min(bug.trace.end, max(ends, default=0) + LONGEST // 8)
    start = max(0, last - LONGEST) if last > LONGEST else 0
    return [quiet(item, start, start + LONGEST) for item in (bug, healthy)]


def quiet(verdict: Verdict, start: int, latest: int) -> View:
    """A stretch of a run; where the device idles is not what this picture is about."""
    view = make_view(verdict.trace, start, max(start + 1, min(verdict.trace.end, latest)))
    return replace(view, bubbles=())
