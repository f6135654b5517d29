"""Mixed chunks: requests decode beside a chunk of a prompt, within one limit of tokens."""

from __future__ import annotations

from ...trace import Trace
from ..scene import Scene
from .step_bars import scene_of_steps
from .steps import StepWork


def scene(trace: Trace) -> Scene:
    """Every step's tokens against the chunk size.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    return scene_of_steps(trace, finding)


def finding(steps: list[StepWork], limit: int) -> str:
    """How many steps are mixed."""
    mixed = sum(step.mode == "mixed" for step in steps)
    return f"mixed_chunk: {mixed} of {len(steps)} steps compute a chunk beside decodes"
