"""A learner's lines can't hang the notebook, and what they raise becomes one sentence."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[1])
LIBRARY = sysconfig.get_paths()["stdlib"]
MOST_OPCODES = 200_000  # of the learner's, in one run; what is right takes a few thousand


class TooLong(BaseException):
    """The learner's lines go on and on; no ``except Exception`` of theirs may stop this."""


class Mistake(ValueError):
    """A learner's lines gave back something that can't be used; the sentence says what."""


def is_learners(filename: str) -> bool:
    """Whether a file is neither the package's nor the standard library's."""
    own = filename.startswith((PACKAGE, LIBRARY)) and "site-packages" not in filename
    return not (own or filename.startswith("<frozen"))


@contextmanager
def bounded(most: int = MOST_OPCODES) -> Iterator[None]:
    """Count the learner's instructions as they run, whoever calls them.

    Not their lines: ``while True: pass`` never gets to another one.

    Raises:
        TooLong: there were more than ``most``.
    """
    left, before = most, sys.gettrace()

    def on_opcode(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        nonlocal left
        left -= event == "opcode"
        if left < 0:
            raise TooLong
        return on_opcode

    def on_call(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not is_learners(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        return on_opcode

    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the package as a learner calls it: inside it, nothing is counted."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        before = sys.gettrace()
        sys.settrace(None)
        try:
            return function(*args, **options)
        finally:
            sys.settrace(before)

    return call


def blame(error: BaseException) -> str:
    """What went wrong, and at which of the learner's lines, in one sentence."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if is_learners(frame.filename):
            text = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
            place = f" at your line `{text}`" if text else " in your lines"
    if isinstance(error, TooLong):
        return f"Your lines go on and on{place}: it looks as if they would never end."
    words = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, Mistake):
        return f"{words[:1].upper()}{words[1:]}."
    return f"{type(error).__name__}{place}{': ' + words if words else ''}."
