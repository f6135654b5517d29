"""A learner's lines can't hang the notebook: their instructions and their seconds are counted."""

from __future__ import annotations

import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, ParamSpec, TypeVar

# -- What a learner's lines raise becomes one sentence, with the line at which it happened ---------

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


# -- Whether what a learner hands over can be called as the exercise says --------------------------


def takes(function: Any, name: str, *arguments: str) -> str:
    """One sentence on why it can't be called with so many arguments, or nothing."""
    call = f"{name}({', '.join(arguments)})"
    if not callable(function):
        kind = type(function).__name__
        return f"{name} is of type {kind}, but it must be a function: {call}."
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        return f"{name} can't be called as {call}: {error}."
    return ""


def one_argument(
    function: Callable[..., Any], name: str, argument: str, generator: bool = False
) -> str:
    """The same for one argument; a loop must be a generator."""
    if problem := takes(function, name, argument):
        return problem
    if generator and not inspect.isgeneratorfunction(inspect.unwrap(function)):
        return f"{name} has no `yield`; a loop yields at the end of each of its turns."
    return ""


P = ParamSpec("P")
R = TypeVar("R")
MOST_OPCODES = 200_000  # of the learner's, in one call; what is right takes a few thousand
MOST_SECONDS = 20.0  # of the learner's lines, in one check; what is right takes one or two


class TooLong(BaseException):
    """The learner's lines go on and on."""


@dataclass
class LearnerClock:
    """The seconds that the learner's lines have taken in one check; what is ours is left out."""

    spent: float = 0.0
    since: float | None = None  # when it was started; None: it stands

    @property
    def seconds(self) -> float:
        """So far."""
        return self.spent + (monotonic() - self.since if self.since is not None else 0)

    def stop(self) -> None:
        """Leave out what comes now."""
        self.spent, self.since = self.seconds, None

    def start(self) -> None:
        """Count again."""
        self.spent, self.since = self.seconds, monotonic()

    def check(self) -> None:
        """Whether there is time left.

        Raises:
            TooLong: there is none.
        """
        if self.seconds > MOST_SECONDS:
            said = f"your lines took {self.seconds:.0f} s in this check, and it stops there"
            raise TooLong(said)


_clocks = [LearnerClock()]  # of the check that is running; the newest is last


def is_late() -> bool:
    """Whether the learner's lines have used up their time in this check."""
    return _clocks[-1].seconds > MOST_SECONDS


def in_time(check: Callable[P, R]) -> Callable[P, R]:
    """A check with a clock of its own."""

    @wraps(check)
    def timed(*args: P.args, **options: P.kwargs) -> R:
        _clocks.append(LearnerClock())
        try:
            return check(*args, **options)
        finally:
            _clocks.pop()

    return timed


@contextmanager
def bounded(most: int = MOST_OPCODES) -> Iterator[None]:
    """Count the learner's instructions as they run, whoever calls them, and their seconds.

    Not their lines: ``while True: pass`` never gets to another one. A single call that does not
    come back can't be cut off, nor can lines that catch everything and go on.

    Raises:
        TooLong: there were more than ``most``, or the check's seconds are used up.
    """
    before, clock, left = sys.gettrace(), _clocks[-1], most
    was_running = clock.since is not None

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        left -= event == "opcode"
        if left < 0:
            raise TooLong
        clock.check()
        return look

    def on_call(frame: FrameType, event: str, arg: Any) -> Any:
        if not is_learners(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        return look

    if not was_running:
        clock.start()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)
        if not was_running:
            clock.stop()


def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the package as a learner calls it: inside it, nothing is counted.

    Raises (where it is called):
        TooLong: the check's seconds are used up, whatever the learner's lines have caught.
    """

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        before, clock = sys.gettrace(), _clocks[-1]
        was_running = clock.since is not None
        sys.settrace(None)
        clock.stop()
        try:
            clock.check()
            return function(*args, **options)
        finally:
            if was_running:
                clock.start()
            sys.settrace(before)

    return call
