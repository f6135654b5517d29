"""A pipeline: what each stage receives, runs and waits for."""

from __future__ import annotations

from ...trace import Trace
from .loop_parts import loop_parts

PARTS = loop_parts(timing=8)


def view(trace: Trace) -> str:
    """The first part: who works when, and who waits."""
    return PARTS["timing"].svg(trace)
