"""The first screen of the page: which run is faster, and the picture by step that shows why.

The page opens at a moment at which all runs work. Of many runs it shows four first, one of each
family of designs (``poster.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ..checks.history import many
from ..checks.overlap import OverlapReport, forwards
from ..trace import Trace
from .by_step import by_step
from .layout import inner, settled, steady_views
from .poster import settled_in
from .runs import TIE
from .scene import Lanes
from .scene_svg import as_address, to_svg
from .svg_style import PHONE, SLIDE
from .units import ms
from .views.marks import NothingToShow

FIRST = 4  # runs that are shown first
MOST_BOXES = 160  # of the picture; a whole run would hide the page below it
FEW = 3  # steps
Family = tuple[str, list[int]]  # its words, and its runs


def verdict(names: Sequence[str], times: Sequence[int], clock: str) -> str:
    """Return one sentence on the fastest run against the first; empty for a single run.

    ``times`` are nanoseconds, 0 for a run that did other work or took no time.
    """
    before, others = times[0], {at: time for at, time in enumerate(times) if at and time}
    if not before or not others:
        return ""
    least = min(others.values())
    fastest, *more = [names[at] for at, time in others.items() if time <= TIE * least]
    name = f"{fastest} (as {many(len(more), 'other')})" if more else fastest
    if before > TIE * least:
        words = f"{name} is {before / least:.2f} times as fast as {names[0]}"
    elif least > TIE * before:
        words = f"{name} takes {least / before:.2f} times as long as {names[0]}"
    else:
        words = f"{name} is as fast as {names[0]}"
    words += f": {ms(least)} instead of {ms(before)} ms"
    return words if clock == "virtual" else f"{words}, measured once"


def picture(traces: Sequence[Trace], fastest: int) -> str:
    """Return the picture by step as an image, in a form for a phone as well; empty if too long."""
    shown = [traces[0], traces[fastest]] if len(traces) > 1 else list(traces)
    try:
        wide, narrow = by_step(shown, 2), by_step(shown, 1)
    except NothingToShow:
        return ""
    boxes = (row.spans for part in wide.parts for one in part.shows if isinstance(one, Lanes)
             for row in one.rows)  # fmt: skip
    if not 0 < sum(map(len, boxes)) <= MOST_BOXES:
        return ""
    phone, slide = as_address(to_svg(narrow, PHONE)), as_address(to_svg(wide, SLIDE))
    return (
        f'<picture><source media="(max-width: 600px)" srcset="{phone}">'
        f'<img src="{slide}" alt="{escape(wide.title, quote=True)}"></picture>'
    )


def families(traces: Sequence[Trace], reports: Sequence[OverlapReport]) -> list[Family]:
    """Return the runs in families, the fastest first; runs without settled steps are the last."""
    by_time = sorted(range(len(traces)), key=lambda at: (at > 0, reports[at].makespan_ns))
    found: dict[str, list[int]] = {}
    for at in by_time:
        known = settled_in(traces[at])
        found.setdefault(known.kind.words if known else "other", []).append(at)
    return sorted(found.items(), key=lambda one: one[0] == "other")


def first_runs(groups: Sequence[Family], count: int) -> list[int]:
    """Return the runs that are shown first: the first run, then the fastest of other families."""
    heads = [members[0] for _, members in groups]
    others = [at for _, members in groups for at in members[1:]]
    return sorted([*heads, *others][: min(count, FIRST)])


def opening(traces: Sequence[Trace]) -> tuple[int, int]:
    """Return a few steps of the second run (of the first, if it is alone) while all runs work."""
    run = traces[min(1, len(traces) - 1)]
    few = steady_views([run], FEW)[0]
    starts = {item.step: item.start for item in reversed(forwards(run))}
    steps = [item.step for item in settled(run)]
    windows = [
        (starts[step], starts[step + FEW]) for step in inner(steps, FEW) if step + FEW in starts
    ]
    middle = (few.start, few.end)
    for start, end in sorted([middle, *windows], key=lambda one: abs(one[0] - few.start)):
        if all(is_busy(trace, start, end) for trace in traces):
            return start, end
    return middle


def is_busy(trace: Trace, start: int, end: int) -> bool:
    """Return whether a device computes between two times."""
    return any(item.start < end and item.end > start for item in forwards(trace))
