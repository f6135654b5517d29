"""Where a loop is in its own source while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def line_of(turns: Iterator[Any]) -> Callable[[], int]:
    """Tells at which line a loop is, counted from 0 at its ``def``; 0 once it has ended."""

    def line() -> int:
        frame = getattr(turns, "gi_frame", None)
        return frame.f_lineno - frame.f_code.co_firstlineno if frame else 0

    return line
