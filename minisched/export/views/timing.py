"""Who works when, and who waits: the lanes of host and device over time."""

from __future__ import annotations

from ...trace import Trace
from ..puml_timing import to_timing
from ..svg import views_to_svg
from ..text import views_to_text
from .page import about_run
from .shown_steps import shown
from .text_page import TextPage

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
