"""The forms of a view on a random run, read back; an example with nothing to show is dropped."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import assume

from minisched.export.views import NothingToShow
from minisched.trace import Trace
from tests.support import Picture, check_picture

Draw = Callable[[Trace], str]


def picture_and_text(view: Draw, text: Draw, trace: Trace) -> tuple[Picture, str]:
    """The SVG, read back and checked, and the text for a terminal."""
    try:
        picture, words = Picture(view(trace)), text(trace)
    except NothingToShow:
        assume(False)
        raise
    check_picture(picture)
    return picture, words
