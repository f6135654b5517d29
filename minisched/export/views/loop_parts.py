"""What every loop's view shows: who works when, who tells whom, and step under step.

A loop's topic has ``PARTS``, its pictures by name; the first one is its view.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...loops.multi_step import NUM_STEPS
from ...trace import Trace
from .. import runs, step_under_step
from ..scene import Scene


def loop_parts(
    timing: int = 3, sequence: int = 2, steps: int = 4
) -> dict[str, Callable[[Trace], Scene]]:
    """The parts that every loop has, each with how many settled steps it shows.

    ``timing`` 0: the whole run. Each raises NothingToShow where no step ran.
    """
    return {
        "timing": partial(runs.timing, count=timing),
        "sequence": partial(runs.sequence, count=sequence),
        "steps": partial(step_under_step.steps, count=steps),
    }


# Where three settled steps do not show it: a burst, and what is between two; both sides of ``pd``
# while a prompt goes from one to the other; a pipeline that is full.
SHOWN: dict[str, dict[str, Any]] = {
    "multi_step": {"timing": 2 * NUM_STEPS, "sequence": NUM_STEPS, "steps": NUM_STEPS + 2},
    "pd": {"timing": 8},
    "vllm_pp": {"timing": 8},
}


def parts_of_loop(loop: str) -> dict[str, Callable[[Trace], Scene]]:
    """The same of a loop that has no picture of its own, with as many steps as it needs."""
    return loop_parts(**SHOWN.get(loop, {}))
