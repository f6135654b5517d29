"""Multi-step scheduling on a time axis: two bursts, and what lies between them."""

from __future__ import annotations

from ...loops.multi_step import NUM_STEPS
from ...trace import Trace
from .timing import draw_timing


def view(trace: Trace) -> str:
    """As many settled steps as two bursts have (``export/svg.py``).

    Raises:
        NothingToShow: no step ran.
    """
    return draw_timing(trace, steps=2 * NUM_STEPS)
