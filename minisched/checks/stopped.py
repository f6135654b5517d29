"""A run that stopped with an error: what its trace can still be asked."""

from __future__ import annotations

from ..trace import Trace
from .leaks.leak import Leak
from .tokens.same_workload import ended, requests_of

AT_ONCE = ("freed", "given", "used")  # kinds of leaks that are wrong whatever comes later


def stopped_with(trace: Trace) -> str:
    """The error of the mark ``stopped`` (``loops/run.py``), or nothing."""
    return next((str(m.attrs["error"]) for m in trace.marks if m.name == "stopped"), "")


def is_cut_short(trace: Trace) -> bool:
    """Whether a run stopped while some request had not ended: what these hold is no leak."""
    return bool(stopped_with(trace)) and not requests_of(trace) <= ended(trace)


def without_cut_short(found: list[Leak], trace: Trace) -> list[Leak]:
    """The leaks that are some, however the run would have gone on."""
    if not is_cut_short(trace):
        return found
    over = ended(trace)
    return [leak for leak in found if leak.kind in AT_ONCE or leak.rid in over]
