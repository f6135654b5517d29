"""Reads the recorded run that a command is given."""

from __future__ import annotations

from pathlib import Path

from ..export import native
from ..trace import Trace


def read_trace(source: Path) -> Trace:
    """A recorded run.

    Raises:
        ValueError: the file can't be read, or is no trace.
    """
    try:
        return native.read(source)
    except OSError as error:
        raise ValueError(f"{source} can't be read: {error.strerror}.") from error
