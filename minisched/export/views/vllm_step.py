"""vLLM's step on a time axis: forward and sampling are launched one after the other."""

from __future__ import annotations

from ...trace import Trace
from .timing import draw_timing


def view(trace: Trace) -> str:
    """A few settled steps of the run (``export/svg.py``).

    Raises:
        NothingToShow: no step ran.
    """
    return draw_timing(trace)
