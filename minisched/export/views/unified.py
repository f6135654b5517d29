"""One budget of tokens a step: who runs comes first, who waits gets the rest (vLLM)."""

from __future__ import annotations

from ...trace import Trace
from ..scene import Scene
from .mixed_chunk import scene_of_steps
from .steps import StepWork


def scene(trace: Trace) -> Scene:
    """Every step's tokens against the budget, and who was preempted for it.

    Raises:
        NothingToShow: no step ran, or the trace does not say how many tokens they had.
    """
    return scene_of_steps(trace, finding)


def finding(steps: list[StepWork], limit: int) -> str:
    """How full the fullest step is."""
    most = max(sum(share.tokens for share in step.parts) for step in steps)
    of = f" of {limit} allowed" if limit > 0 else ""
    return f"unified: at most {most}{of} tokens a step, whoever they are for"
