"""Multi-step scheduling: two bursts, and what lies between them."""

from __future__ import annotations

from ...loops.multi_step import NUM_STEPS
from ...trace import Trace
from .loop_parts import loop_parts

PARTS = loop_parts(timing=2 * NUM_STEPS, sequence=NUM_STEPS, steps=NUM_STEPS + 2)


def view(trace: Trace) -> str:
    """The first part: who works when, and who waits."""
    return PARTS["timing"].svg(trace)
