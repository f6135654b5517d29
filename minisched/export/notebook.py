"""The stepper in a notebook's cell: Jupyter, an executed notebook as HTML, or a Sphinx site.

Where there is no notebook, the same runs as text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from ..trace import Trace
from .html import to_html
from .runs import compare
from .scene_text import to_text


class HasTrace(Protocol):
    """Anything that was recorded: a ``Run`` of ``loops/run.py``, for one."""

    @property
    def trace(self) -> Trace:
        """What it left behind."""


@dataclass(frozen=True)
class NotebookCell:
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
) -> NotebookCell:
    """The stepper over one run or several, as the last value of a cell.

    ``runs`` are traces, or whatever has one as ``trace``; the first is the baseline of speed-ups.

    Raises:
        ValueError: there is no run, or the height is less than 1 pixel.
    """
    check_height(height)
    return NotebookCell(to_html(traces_of(runs), title=title), height)


def display(
    runs: Trace | HasTrace | Iterable[Trace | HasTrace], height: int = 640, text: str | None = None
) -> None:
    """Show the stepper at once where IPython runs the cell, or the terminal; else print a text.

    The text is ``text``, or a picture of a few settled steps of each run. What the terminal can't
    encode is printed as a question mark.

    Raises:
        ValueError: there is no run, or the height is less than 1 pixel.
    """
    check_height(height)
    traces = traces_of(runs)
    if not traces:
        raise ValueError("there is no run to show; give at least one.")
    if text is None:
        text = to_text(compare(traces)).rstrip()
    python = sys.modules.get("IPython")
    if python is not None and python.get_ipython() is not None:
        import_module("IPython.display").display(Shown(to_html(traces), height, text))
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


@dataclass(frozen=True, repr=False)
class Shown(NotebookCell):
    """A cell that is a text where nobody can show a page: in IPython's terminal."""

    text: str

    def __repr__(self) -> str:
        return self.text


def traces_of(runs: Trace | HasTrace | Iterable[Trace | HasTrace]) -> list[Trace]:
    """The traces of one run or several."""
    several = list(runs) if isinstance(runs, Iterable) else [runs]
    return [run if isinstance(run, Trace) else run.trace for run in several]


def check_height(height: int) -> None:
    """Whether a cell can be so many pixels high.

    Raises:
        ValueError: it can't.
    """
    if height < 1:
        raise ValueError(f"a cell is at least 1 pixel high, but height is {height}.")
