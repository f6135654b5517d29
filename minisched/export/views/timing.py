"""Who works when, and who waits: the lanes of host and device over time."""

from __future__ import annotations

from ...trace import Trace
from ..puml_timing import to_timing
from ..svg import views_to_svg
from ..text import views_to_text
from .shown_steps import shown


def draw_timing(trace: Trace, count: int, title: str = "") -> str:
    """``count`` settled steps as an SVG; 0: the whole run.

    Raises:
        NothingToShow: no step ran.
    """
    usual = f"{trace.loop}: who works when, and who waits"
    return views_to_svg([shown(trace, count)], title or usual)


def timing_to_puml(trace: Trace, count: int) -> str:
    """The same as a PlantUML timing diagram."""
    view = shown(trace, count)
    return to_timing(trace, view.first_step, view.last_step)


def write_timing(trace: Trace, count: int) -> str:
    """The same for a terminal."""
    return views_to_text([shown(trace, count)])
