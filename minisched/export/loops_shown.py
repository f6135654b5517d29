"""What several runs beside one another are called."""

from __future__ import annotations

from collections.abc import Sequence

from ..trace import Trace

MOST_NAMES = 3


def loops_shown(traces: Sequence[Trace]) -> str:
    """The loops by name, or how many there are where their names would fill the line."""
    if len(traces) > MOST_NAMES:
        return f"{len(traces)} loops side by side"
    return " against ".join(trace.loop for trace in traces)
