"""What every loop's view shows: who works when, who tells whom, and step under step.

A loop's topic has ``PARTS``, its pictures by name; the first one is its view.
"""

from __future__ import annotations

from typing import Any

from ...loops.multi_step import NUM_STEPS
from ...trace import Trace
from ..puml_sequence import to_sequence
from ..puml_timing import to_timing
from ..svg import views_to_svg
from ..text import views_to_text
from .forms import PictureForms
from .page import about_run
from .sequence import draw_sequence, write_sequence
from .shown_steps import shown
from .step_rows import draw_steps, steps_to_puml, write_steps
from .text_page import TextPage

# -- Who works when, and who waits: the lanes of host and device over time -------------------------

USUAL = "who works when, and who waits"


def draw_timing(trace: Trace, count: int, about: str = "") -> str:
    """``count`` settled steps as an SVG; 0: the whole run.

    Raises:
        NothingToShow: no step ran.
    """
    return views_to_svg([shown(trace, count)], f"{trace.loop}: {about or USUAL}")


def timing_to_puml(trace: Trace, count: int) -> str:
    """The same as a PlantUML timing diagram."""
    view = shown(trace, count)
    return to_timing(trace, view.first_step, view.last_step)


def write_timing(trace: Trace, count: int, about: str = "") -> str:
    """The same for a terminal."""
    page = TextPage(f"{trace.loop}: {about or USUAL}", about_run(trace))
    page.lines += ["", *views_to_text([shown(trace, count)]).splitlines()]
    return page.finish()


def loop_parts(
    timing: int = 3, sequence: int = 2, steps: int = 4, about: str = ""
) -> dict[str, PictureForms]:
    """The parts that every loop has, each with how many settled steps it shows.

    ``timing`` 0: the whole run. ``about`` is what the timing's title
    says after the loop, if that is not the usual. Each form
    raises NothingToShow where no step ran.
    """
    return {
        "timing": PictureForms(
            svg=lambda trace: draw_timing(trace, timing, about),
            text=lambda trace: write_timing(trace, timing, about),
            puml=lambda trace: timing_to_puml(trace, timing),
        ),
        "sequence": PictureForms(
            svg=lambda trace: draw_sequence(trace, sequence),
            text=lambda trace: write_sequence(trace, sequence),
            puml=lambda trace: sequence_to_puml(trace, sequence),
        ),
        "steps": PictureForms(
            svg=lambda trace: draw_steps(trace, steps),
            text=lambda trace: write_steps(trace, steps),
            puml=lambda trace: steps_to_puml(trace, steps),
        ),
    }


# Where three settled steps do not show it: a burst, and what is between two; both sides of ``pd``
# from their beginning to their end; a pipeline that is full.
SHOWN: dict[str, dict[str, Any]] = {
    "multi_step": {"timing": 2 * NUM_STEPS, "sequence": NUM_STEPS, "steps": NUM_STEPS + 2},
    "pd": {"timing": 0, "about": "prompts here, decoding there, KV in between"},
    "vllm_pp": {"timing": 8},
}


def parts_of_loop(loop: str) -> dict[str, PictureForms]:
    """The same of a loop that has no picture of its own, with as many steps as it needs."""
    return loop_parts(**SHOWN.get(loop, {}))


def sequence_to_puml(trace: Trace, count: int) -> str:
    """Who tells whom as a PlantUML sequence diagram."""
    view = shown(trace, count)
    title = f"{trace.loop}: who tells whom, in order"
    return to_sequence(trace, view.first_step, view.last_step, title)
