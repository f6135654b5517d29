"""A peer's scheduler, asked for the time of some of its steps; the time is taken over there.

Imports of the rest only the workloads, which need the standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..scheduler import HostEngine, HostWorkload, timed
from .serve import Answer


def answer_with(
    engine_of: Callable[[HostWorkload], HostEngine],
) -> Callable[[dict[str, Any]], Answer]:
    """Answers ``{"load", "warm_up", "steps"}`` with the microseconds and rows of all steps."""

    def measure(question: dict[str, Any]) -> Answer:
        engine = engine_of(HostWorkload(**question["load"]))
        taken, rows = timed(engine, question["warm_up"], question["steps"])
        return {"us": taken, "rows": rows}

    return measure
