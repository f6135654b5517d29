"""What a picture of a broken law shows: the few steps around it, and nothing that idles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from ..checks.history import Offence
from ..checks.overlap import forwards
from ..trace import Trace
from .lane import Lane
from .layout import Box, View, boxes_of, make_view

STEPS = 1.2  # shown before and after what did it


@dataclass(frozen=True)
class Scene:
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


def scene_of(trace: Trace, offence: Offence, around_ns: int | None = None) -> Scene:
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
    return Scene(_quiet(view, missing), tuple(culprits.values()), missing, offence.waits)


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
