"""The stepper in a notebook's cell: Jupyter, an executed notebook as HTML, or a Sphinx site."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ..trace import Trace
from .html import to_html


class HasTrace(Protocol):
    """Anything that was recorded: a ``Run`` of ``loops/run.py``, for one."""

    @property
    def trace(self) -> Trace:
        """What it left behind."""


@dataclass(frozen=True)
class Cell:
    """What a notebook shows: the page in a frame of its own. ``html`` is the whole page."""

    html: str
    height: int  # pixels

    def _repr_html_(self) -> str:
        """A frame that may run its scripts and nothing else; it needs no file and no network."""
        source = self.html.replace("&", "&amp;").replace("'", "&#39;")
        return (
            f"<iframe srcdoc='{source}' sandbox='allow-scripts' title='stepper' "
            f"style='width:100%;height:{self.height}px;border:0;color-scheme:normal'></iframe>"
        )


def show(
    runs: Trace | HasTrace | Iterable[Trace | HasTrace], height: int = 640, title: str = ""
) -> Cell:
    """The stepper over one run or several, as the last value of a cell.

    ``runs`` are traces, or whatever has one as ``trace``; the first is the baseline of speed-ups.

    Raises:
        ValueError: there is no run, or the height is less than 1 pixel.
    """
    if height < 1:
        raise ValueError(f"a cell is at least 1 pixel high, but height is {height}.")
    several = list(runs) if isinstance(runs, Iterable) else [runs]
    traces = [run if isinstance(run, Trace) else run.trace for run in several]
    return Cell(to_html(traces, title=title), height)
