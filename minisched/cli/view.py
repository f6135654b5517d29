"""``minisched view``: a recorded run as the picture of one topic."""

from __future__ import annotations

import sys
from pathlib import Path

from ..export import native
from ..export.views import NothingToShow, draw
from ..topics import TOPICS


def run_view(topic: str, source: Path, out: str | None) -> None:
    """Read a trace and write its view: to ``out``, to stdout if that is ``-``, or to TOPIC.svg.

    Raises:
        ValueError: there is no such topic, the file is no trace or lacks what the view needs, or
            the picture can't be written.
    """
    if topic not in TOPICS:
        raise ValueError(f"unknown topic {topic!r}; the topics are {', '.join(TOPICS)}.")
    try:
        svg = draw(topic, native.read(source))
    except OSError as error:
        raise ValueError(f"{source} can't be read: {error.strerror}.") from error
    except NothingToShow as error:
        raise ValueError(f"{source} can't be shown as {topic}: {error}") from error
    if out == "-":
        sys.stdout.write(svg)
        return
    target = Path(out or f"{topic}.svg")
    try:
        target.write_text(svg, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ValueError(f"{target} can't be written: {error.strerror}.") from error
    print(target)
