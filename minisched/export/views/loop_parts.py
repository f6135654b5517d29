"""What every loop's view shows: who works when, who tells whom, and step under step.

A loop's topic has ``PARTS``, its pictures by name; the first one is its view.
"""

from __future__ import annotations

from typing import Any

from ...loops.multi_step import NUM_STEPS
from ..runs import sequence as sequence_scene
from ..runs import steps as steps_scene
from ..runs import timing as timing_scene
from .forms import PictureForms, forms_of_scene


def loop_parts(timing: int = 3, sequence: int = 2, steps: int = 4) -> dict[str, PictureForms]:
    """The parts that every loop has, each with how many settled steps it shows.

    ``timing`` 0: the whole run. Each form raises NothingToShow where no step ran.
    """
    return {
        "timing": forms_of_scene(lambda trace: timing_scene(trace, timing)),
        "sequence": forms_of_scene(lambda trace: sequence_scene(trace, sequence)),
        "steps": forms_of_scene(lambda trace: steps_scene(trace, steps)),
    }


# Where three settled steps do not show it: a burst, and what is between two; both sides of ``pd``
# while a prompt goes from one to the other; a pipeline that is full.
SHOWN: dict[str, dict[str, Any]] = {
    "multi_step": {"timing": 2 * NUM_STEPS, "sequence": NUM_STEPS, "steps": NUM_STEPS + 2},
    "pd": {"timing": 8},
    "vllm_pp": {"timing": 8},
}


def parts_of_loop(loop: str) -> dict[str, PictureForms]:
    """The same of a loop that has no picture of its own, with as many steps as it needs."""
    return loop_parts(**SHOWN.get(loop, {}))
