"""The museum's pictures among the files that the repository keeps of its own output."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from .exhibit import Exhibit
from .picture import draw
from .registry import exhibits


def museum_makers() -> dict[str, Callable[[], dict[str, str]]]:
    """What makes the picture of each bug, by its name; each gives a text by path."""
    return {f"museum/{item.name}": partial(picture_file, item) for item in exhibits()}


def picture_file(exhibit: Exhibit) -> dict[str, str]:
    """One picture."""
    return {path_of(exhibit): draw(exhibit)}


def path_of(exhibit: Exhibit) -> str:
    """Where a bug's picture is, in the repository."""
    return f"traces/museum/{exhibit.name}.svg"
