"""The steady part of a run: decode steps alone, without those in which requests come and go."""

from __future__ import annotations

from statistics import median

from ..checks.overlap.overlap import device_busy, forwards, intersection, length, step_intervals
from ..trace import Trace

SETTLED = 3  # steps at each end that are left out


def steady_busy_percent(trace: Trace) -> float:
    """The share of the time between settled decode steps in which the device was busy.

    Raises:
        ValueError: the run has too few steps.
    """
    decodes = [item for item in forwards(trace) if item.mode == "decode"][SETTLED:-SETTLED]
    if len(decodes) < 2:
        raise ValueError(f"a run of {len(forwards(trace))} steps has no steady part.")
    whole = ((decodes[0].start, decodes[-1].start),)
    return 100 * length(intersection(device_busy(trace), whole)) / length(whole)


def steady_step_ms(trace: Trace) -> float:
    """The median time from one settled step's forward pass to the next one's."""
    return median(step_intervals(trace)[SETTLED:-SETTLED]) / 1e6
