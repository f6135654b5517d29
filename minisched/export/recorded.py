"""Reads a recorded run, whoever recorded it."""

from __future__ import annotations

from pathlib import Path

from ..checks.answers import Recorded
from ..checks.foreign import OWN_STEPS, read_foreign
from ..trace.files import Hear, unheard, unpacked
from . import native

BEGINNING = 4096  # bytes in which a file of this program says what it is


def read_recorded(path: Path, step: str = "", hear: Hear = unheard) -> Recorded:
    """A run in this program's own format, in its Chrome export, or from another profiler.

    ``step`` is the name of the ranges that are steps in a profiler's trace, and ``hear`` is told
    how many bytes were read.

    Raises:
        ValueError: the file can't be read, or is none of them.
    """
    try:
        if is_native(path):
            if step:
                raise ValueError(f"{path}: {OWN_STEPS}")
            return Recorded(str(path), native.read(path))
        foreign = read_foreign(path, step, hear)
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}.") from error
    return Recorded(str(path), foreign.trace, foreign.lacks, foreign.steps)


def is_native(path: Path) -> bool:
    """Whether a file begins as ``native.py`` writes it."""
    with unpacked(path) as file:
        return f'"{native.FORMAT}"'.encode() in file.read(BEGINNING)
