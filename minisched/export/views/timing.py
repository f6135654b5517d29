"""What the views of the loops have in common: the lanes of host and device."""

from __future__ import annotations

from ...trace import Trace
from ..svg import to_svg
from .steps import forwards_of


def draw_timing(trace: Trace, steps: int = 3) -> str:
    """A few settled steps, or the whole run where it has too few.

    Raises:
        NothingToShow: no step ran.
    """
    forwards_of(trace)
    return to_svg([trace], steps, title=f"{trace.loop}: who works when, and who waits")
