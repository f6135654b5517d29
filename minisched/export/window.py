"""A run is too long for a picture: choose a few steps from where it has settled."""

from __future__ import annotations

from ..trace import Slice, Trace
from .layout import View, make_view


def forwards(trace: Trace) -> tuple[Slice, ...]:
    """The forward slice of each step, in order of time."""
    return tuple(item for item in trace.on("forward") if item.name == "forward")


def steady_steps(trace: Trace, count: int, rids: tuple[str, ...] = ()) -> tuple[int, int] | None:
    """The first and the last of ``count`` steps from the middle of the longest settled stretch.

    Settled means: decode steps that follow one another with the same requests (``rids``, where
    given). The step before them is settled as well, and so is the one after, whose start ends the
    view. None if the run has no such stretch.
    """
    best: list[Slice] = []
    stretch: list[Slice] = []
    for item in forwards(trace):
        if stretch and item.rids != stretch[-1].rids:
            stretch = []
        if item.mode == "decode" and (not rids or item.rids == rids):
            stretch.append(item)
        best = max(best, list(stretch), key=len)
    spare = len(best) - (count + 2)
    if spare < 0:
        return None
    first = best[1 + spare // 2]
    return first.step, best[spare // 2 + count].step


def view_of_steps(trace: Trace, first_step: int, last_step: int) -> View:
    """From the moment the device starts one step to the moment it is ready to go past another.

    In a settled stretch that is a whole number of periods. A view of the first step begins where
    the run does; one of the last step ends where the run does.

    Raises:
        ValueError: the run has no such steps.
    """
    starts = {item.step: item.start for item in forwards(trace)}
    if first_step > last_step or first_step not in starts or last_step not in starts:
        known = f"steps {min(starts)} to {max(starts)}" if starts else "no steps"
        raise ValueError(f"steps {first_step} to {last_step} cannot be shown: the run has {known}.")
    before = [start for step, start in starts.items() if step < first_step]
    after = [start for step, start in starts.items() if step > last_step]
    return make_view(
        trace,
        starts[first_step] if before else 0,
        min(after) if after else trace.end,
        first_step,
        last_step,
    )


def whole_run(trace: Trace) -> View:
    """Everything."""
    steps = [item.step for item in forwards(trace)]
    return make_view(trace, 0, trace.end, min(steps, default=0), max(steps, default=0))


def steady_views(traces: list[Trace], count: int) -> list[View]:
    """The same number of settled steps of each run; whole runs if one of them has too few.

    Where they can, all runs show steps with the first run's requests: equal work.
    """
    views: list[View] = []
    rids: tuple[str, ...] = ()
    for trace in traces:
        steps = steady_steps(trace, count, rids) or steady_steps(trace, count)
        if steps is None:
            return [whole_run(trace) for trace in traces]
        views.append(view_of_steps(trace, *steps))
        rids = rids or next(item.rids for item in forwards(trace) if item.step == steps[0])
    return views
