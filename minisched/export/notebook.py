"""The output of a notebook's cell: the stepper, or a picture.

It appears in Jupyter, in an executed notebook as HTML and in a Sphinx site; elsewhere as text. A
reader that shows no frames (an untrusted notebook, GitHub, paper) shows the picture instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape, unescape
from importlib import import_module
from typing import Protocol

from ..checks.overlap import is_profiled
from ..trace import Trace
from .by_step import by_step
from .html import to_html
from .poster import poster
from .profiled_steps import profiled_steps
from .runs import compare
from .scene_svg import as_address, to_svg
from .scene_text import to_text
from .svg_style import SLIDE


class HasTrace(Protocol):
    """Anything with a recorded trace, for example a ``Run`` of ``loops/run.py``."""

    @property
    def trace(self) -> Trace:
        """Return the recorded trace."""


FRAME = """\
{lead}<div style='display:grid'>{picture}<iframe srcdoc='{page}' sandbox='allow-scripts' \
title='stepper' style='grid-area:1/1;width:100%;height:{height}px;border:0;color-scheme:normal'>\
</iframe></div>"""
"""The stepper over its picture. A reader that removes frames leaves the picture."""

ON_PAPER = """
<style>@media print { body { background: none !important } body * { visibility: hidden } }</style>
"""
"""A frame on paper lets the picture under it through."""


@dataclass(frozen=True)
class NotebookCell:
    """A page in a frame of its own, as a cell's value. ``html`` is the whole page.

    ``height`` is in pixels; ``text`` replaces the page where none can be shown. ``svg`` is a still
    picture of the page, under the frame. ``lead`` is text above the frame.

    Raises:
        ValueError: the height is less than 1 pixel.
    """

    html: str
    height: int
    text: str = "<stepper: open it in a notebook>"
    svg: str = ""
    lead: str = ""

    def __post_init__(self) -> None:
        if self.height < 1:
            raise ValueError(f"a cell is at least 1 pixel high, but height is {self.height}.")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the frame, the picture if there is one, and the text."""
        drawn = {"image/svg+xml": self.svg} if self.svg else {}
        return {"text/html": self._repr_html_(), **drawn, "text/plain": self.text}

    def _repr_html_(self) -> str:
        """Return a frame that may only run its scripts; it needs no file and no network."""
        style = f"grid-area:1/1;max-width:100%;max-height:{self.height}px"
        page = self.html + ON_PAPER if self.svg else self.html
        return FRAME.format(
            lead=f"{in_columns(self.lead)}\n" if self.lead else "",
            picture=NotebookPicture(self.svg).image(style) if self.svg else "",
            page=page.replace("&", "&amp;").replace("'", "&#39;"),
            height=self.height,
        )

    def __repr__(self) -> str:
        return self.text


def in_columns(text: str) -> str:
    """Return a text as HTML that keeps its columns: not every notebook has a font for that."""
    return f'<pre style="font-family:monospace">{escape(text)}</pre>'


def show(
    runs: Trace | HasTrace | Iterable[Trace | HasTrace], height: int = 640, title: str = ""
) -> NotebookCell:
    """Return the stepper over one run or several, as the last value of a cell.

    ``runs`` are traces, or objects with one as ``trace``; the first is the baseline of speed-ups.

    Raises:
        ValueError: there is no run, or the height is less than 1 pixel.
    """
    traces = traces_of(runs)
    return NotebookCell(to_html(traces, title=title), height, svg=still(traces))


def display(
    runs: Trace | HasTrace | Iterable[Trace | HasTrace], height: int = 640, text: str | None = None
) -> None:
    """Show the stepper immediately where IPython runs the cell; otherwise print a text.

    The text is ``text``, or a picture of a few settled steps of each run. Characters that the
    terminal can't encode become question marks.

    Raises:
        ValueError: there is no run, or the height is less than 1 pixel.
    """
    traces = traces_of(runs)
    if not traces:
        raise ValueError("there is no run to show; give at least one.")
    said = to_text(compare(traces)).rstrip() if text is None else text
    cell = NotebookCell("", height, said)
    python = sys.modules.get("IPython")
    if python is not None and python.get_ipython() is not None:
        shown = replace(cell, html=to_html(traces), svg=still(traces))
        import_module("IPython.display").display(shown)
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(said.encode(encoding, "replace").decode(encoding))


def traces_of(runs: Trace | HasTrace | Iterable[Trace | HasTrace]) -> list[Trace]:
    """Return the traces of one run or several."""
    several = list(runs) if isinstance(runs, Iterable) else [runs]
    return [run if isinstance(run, Trace) else run.trace for run in several]


MOST_STRIPS = 5  # runs in a picture by step; a picture of more runs is a poster


def still(traces: Sequence[Trace]) -> str:
    """Return the still picture of the stepper over these runs: an SVG by step, or a poster."""
    if len(traces) > MOST_STRIPS:
        return to_svg(poster(traces))
    return to_svg(by_step(traces), SLIDE)


def trace_bundle(trace: Trace, text: str) -> dict[str, str]:
    """Return a cell's output for one trace: the text, and below it the picture of its steps."""
    if not any(item.step for item in trace.slices):
        return {"text/plain": text}
    drawn = to_svg(profiled_steps(trace)) if is_profiled(trace) else still([trace])
    picture = NotebookPicture(drawn)
    page = in_columns(text) + picture.image()
    return {"text/html": page, "image/svg+xml": picture.svg, "text/plain": text}


# -- A picture -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NotebookPicture:
    """An SVG, shown as an image to keep its styles, light and dark, to itself."""

    svg: str

    @property
    def title(self) -> str:
        """Return the picture's title, for screen readers."""
        found = re.search(r"<title>(.*?)</title>", self.svg, re.S)
        return unescape(found[1]) if found else "a picture"

    def image(self, style: str = "max-width:100%;height:auto") -> str:
        """Return an ``img`` of this style; it contains the picture."""
        return (
            f'<img alt="{escape(self.title, quote=True)}" style="{style}" '
            f'src="{as_address(self.svg)}"/>'
        )

    def _repr_html_(self) -> str:
        return self.image()

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return the picture, as an image of a page and as an SVG, and its title."""
        drawn = {"text/html": self.image(), "image/svg+xml": self.svg}
        return {**drawn, "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"<picture: {self.title}>"
