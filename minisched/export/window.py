"""A run is too long for a picture: choose a few steps from where it has settled."""

from __future__ import annotations

from ..checks.overlap import forwards
from ..trace import Slice, Trace
from .layout import View, make_view

DECODES = ("decode", "target verify")  # modes in which every row gives a token, or several


def settled(trace: Trace, rids: tuple[str, ...] | None = None) -> list[Slice]:
    """The longest stretch of decode steps that follow one another with the same requests.

    ``rids`` says which requests, where it matters. Gives the forward slices.
    """
    stretches: list[list[Slice]] = [[]]
    for item in forwards(trace):
        if stretches[-1] and item.rids != stretches[-1][-1].rids:
            stretches.append([])
        if item.mode in DECODES and rids in (None, item.rids):
            stretches[-1].append(item)
    return max(stretches, key=len)


def steady_steps(trace: Trace, count: int) -> tuple[int, int] | None:
    """The first and last of ``count`` steps in the middle of the longest settled stretch, or None.

    The steps before and after them are settled too: the start of the one after ends the view.
    """
    steps = [item.step for item in settled(trace)]
    firsts = steps[1 : max(1, len(steps) - count)]
    first = middle(firsts)
    return (first, steps[steps.index(first) + count - 1]) if firsts else None


def middle(steps: list[int]) -> int:
    """The middle one, or 0 if there are none."""
    return steps[(len(steps) - 1) // 2] if steps else 0


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

    Where they can, all runs show the same steps with the same requests: equal work.
    """
    rids = settled(traces[0])[0].rids if settled(traces[0]) else None
    steps = [[item.step for item in settled(trace, rids)] for trace in traces]
    common = set.intersection(*(set(some[1 : max(1, len(some) - count)]) for some in steps))
    if first := middle(sorted(common)):
        return [view_of_steps(trace, first, first + count - 1) for trace in traces]
    found = [steady_steps(trace, count) for trace in traces]
    if None in found:
        return [whole_run(trace) for trace in traces]
    return [view_of_steps(trace, *some) for trace, some in zip(traces, found, strict=True) if some]
