"""The diagrams that show a design, or several side by side, a module for each family.

A module has ``PICTURES`` (name -> a function that gives the text of ``diagrams/NAME.puml``). The
figures in them come from golden runs (``export/recipes``). It may have ``DRAWINGS`` (name -> a
function that gives the text of ``traces/NAME.svg``): what is drawn of a run and is no topic's view.
"""

from __future__ import annotations

from collections.abc import Callable

from ..families import merged

__all__ = ["drawings", "pictures"]


def pictures() -> dict[str, Callable[[], str]]:
    """What makes each diagram, by its name."""
    return merged(__name__, "PICTURES")


def drawings() -> dict[str, Callable[[], str]]:
    """What makes each drawing that is no topic's view, by its name."""
    return merged(__name__, "DRAWINGS")
