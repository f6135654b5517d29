"""Which steps of a run the pictures of a loop show: a few from where the run has settled."""

from __future__ import annotations

from ...trace import Slice, Trace
from ..layout import DECODES, View, middle, steady_steps, view_of_steps
from .steps import forwards_of

MOST_PERIOD = 8  # batches that take turns; a pipeline has as many as stages
MOST_STEPS = 40  # of a whole run


def shown(trace: Trace, count: int) -> View:
    """``count`` settled steps; 0: the whole run, or its first ``MOST_STEPS`` steps.

    Of two schedulers the first steps of the one that decodes, for what leads to them is the point.
    Every form of a part shows this view.

    Raises:
        NothingToShow: no step ran.
    """
    steps = [item.step for item in forwards_of(trace)]
    return view_of_steps(trace, *_chosen(trace, sorted(steps), count))


def _chosen(trace: Trace, steps: list[int], count: int) -> tuple[int, int]:
    """The first and the last step."""
    if not count or len(steps) <= count:
        return steps[0], steps[:MOST_STEPS][-1]
    if all(item.lane != "host" for item in trace.slices):
        return steps[0], steps[count - 1]
    if found := steady_steps(trace, count):
        return found
    settled = in_turns(trace)
    candidates = settled[1 : max(1, len(settled) - count)] or steps[: len(steps) - count + 1]
    first = middle(candidates)
    return first, steps[steps.index(first) + count - 1]


def in_turns(trace: Trace) -> list[int]:
    """The longest stretch of decode steps in which the same batches take turns, twice at least."""
    decodes = [item for item in forwards_of(trace) if item.mode in DECODES]
    stretches = (_stretch(decodes, period) for period in range(1, MOST_PERIOD + 1))
    return [item.step for item in max(stretches, key=len)]


def _stretch(decodes: list[Slice], period: int) -> list[Slice]:
    """The longest stretch of steps in which every ``period``-th has the same requests."""
    best, start = (0, 0), 0
    for at, item in enumerate(decodes):
        if at and item.step != decodes[at - 1].step + 1:
            start = at
        elif at - start >= period and decodes[at - period].rids != item.rids:
            start = at - period + 1
        best = max(best, (start, at + 1), key=lambda span: span[1] - span[0])
    return decodes[slice(*best)] if best[1] - best[0] >= 2 * period else []
