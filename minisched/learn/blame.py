"""What a learner's lines raise becomes one sentence, with the line at which it happened."""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[1])
LIBRARIES = tuple(sysconfig.get_path(of) for of in ("stdlib", "platstdlib", "purelib", "platlib"))


class Mistake(ValueError):
    """A learner's lines gave back something that can't be used; the sentence says what."""


def is_learners(filename: str) -> bool:
    """Whether a file is neither the package's nor of a library."""
    return not filename.startswith((PACKAGE, *LIBRARIES, "<frozen"))


def blame(error: BaseException) -> str:
    """What went wrong, and at which of the learner's lines, in one sentence."""
    number, text = 0, ""
    for frame in traceback.extract_tb(error.__traceback__):
        if is_learners(frame.filename):
            number = frame.lineno or 0
            text = (frame.line or linecache.getline(frame.filename, number)).strip()
    words = " ".join(str(error).split()).rstrip(".")
    if not isinstance(error, Exception):
        return _endless(words, number, text)
    if isinstance(error, Mistake):
        return f"{words[:1].upper()}{words[1:]}."
    place = (f" at your line `{text}`" if text else " in your lines") if number else ""
    return f"{type(error).__name__}{place}{': ' + words if words else ''}."


def _endless(words: str, number: int, text: str) -> str:
    """``words`` are there if it was the time that ran out."""
    code = f"line {number}, `{text}`" if text else f"line {number}"
    if words:
        where = f" It was at {code}." if number else ""
        return f"{words[:1].upper()}{words[1:]}.{where}"
    place = f"It was stopped at {code}." if number else ""
    return f"Your lines go on and on: it looks as if they would never end. {place}".strip()
