"""What every loop's view shows: who works when, who tells whom, and step under step.

A loop's topic has ``PARTS``, its pictures by name; the first one is its view.
"""

from __future__ import annotations

from ...trace import Trace
from ..puml_sequence import to_sequence
from .forms import PictureForms
from .sequence_svg import draw_sequence
from .sequence_text import write_sequence
from .shown_steps import shown
from .steps_puml import steps_to_puml
from .steps_svg import draw_steps
from .steps_text import write_steps
from .timing import draw_timing, timing_to_puml, write_timing


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


def sequence_to_puml(trace: Trace, count: int) -> str:
    """Who tells whom as a PlantUML sequence diagram."""
    view = shown(trace, count)
    title = f"{trace.loop}: who tells whom, in order"
    return to_sequence(trace, view.first_step, view.last_step, title)
