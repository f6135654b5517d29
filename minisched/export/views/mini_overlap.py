"""The mini_overlap loop: prompts go up on a stream of the scheduler's own."""

from __future__ import annotations

from ...trace import Trace
from .loop_parts import loop_parts

PARTS = loop_parts()


def view(trace: Trace) -> str:
    """The first part: who works when, and who waits."""
    return PARTS["timing"].svg(trace)
