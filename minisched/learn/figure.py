"""Pictures of runs, for notebooks and pages: an image that brings its own paper and styles."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from html import escape, unescape

from ..export.svg import to_svg
from ..export.views import draw
from ..loops.run import Run
from ..trace import Trace
from .ring_picture import draw_ring


@dataclass(frozen=True)
class LessonFigure:
    """An SVG. It is shown as an image, so that its styles stay its own, light and dark."""

    svg: str

    @property
    def title(self) -> str:
        """What it shows, in words: for those who hear the page."""
        found = re.search(r"<title>(.*?)</title>", self.svg, re.S)
        return unescape(found[1]) if found else "a picture"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.svg.encode()).decode()
        return (
            f'<img alt="{escape(self.title, quote=True)}" style="max-width:100%;height:auto" '
            f'src="data:image/svg+xml;base64,{data}"/>'
        )

    def __repr__(self) -> str:
        return f"<picture: {self.title}>"


def trace_of(run: Run | Trace) -> Trace:
    """The trace of a run, or the trace itself."""
    return run.trace if isinstance(run, Run) else run


def timing(*runs: Run | Trace, steps: int = 3, whole: bool = False) -> LessonFigure:
    """Runs above each other on one time axis: a few settled steps, or all of them.

    Raises:
        ValueError: there is no run.
    """
    traces = [trace_of(run) for run in runs]
    title = f"{traces[0].loop}: who works when, and who waits" if len(traces) == 1 else ""
    return LessonFigure(to_svg(traces, steps, whole, title))


def view(topic: str, run: Run | Trace) -> LessonFigure:
    """A topic's own view of a run.

    Raises:
        ValueError: there is no such topic, or the run has nothing of it.
    """
    trace = trace_of(run)
    return LessonFigure(draw_ring(trace) if topic == "future_map" else draw(topic, trace))
