"""The steps of a loop as a PlantUML timing diagram: a lane for each step's host and device."""

from __future__ import annotations

from ...trace import Trace
from ..puml_style import creole
from ..puml_timing import RunPanel, draw_panels
from .steps_rows import rows_of, steps_view
from .steps_story import rhythm


def steps_to_puml(trace: Trace, count: int) -> str:
    """The diagram's text.

    Raises:
        NothingToShow: no step ran.
    """
    rows = rows_of(trace, count)
    title = f"{creole(trace.loop)}: step under step\\n{creole(rhythm(rows))}"
    return draw_panels([RunPanel(steps_view(trace, rows))], title)
