"""The output of a notebook's cell for a run or a trace; the package sets a function that draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Draw = Callable[[Any, str], dict[str, str]]  # of a trace and its text: the output by MIME type


def without_picture(trace: Any, text: str) -> dict[str, str]:
    """Return the text alone."""
    return {"text/plain": text}


class NotebookOutput:
    """How a trace is shown; ``minisched/__init__.py`` sets ``draw``."""

    draw: Draw = staticmethod(without_picture)
