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
from functools import partial, wraps
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
MOST_OPCODES = 200_000  # of the learner's, in one run; what is right takes a few thousand
GRACE = 1000  # of those that may follow while somebody keeps the exception; then half of it, ...
MOST_SECONDS = 20.0  # of the learner's lines, in one check; what is right takes one or two


class TooLong(BaseException):
    """The learner's lines go on and on.

    Where lines of theirs catch this, it is raised once more at the next instruction after it is
    let go of. It may be kept, too: by lines of theirs, or by a hook for what nobody can catch, if
    it was raised where the collector of garbage calls them. Then they have ``Guard.grace``.
    """

    def __init__(self, words: str = "", again: Callable[[], None] = lambda: None) -> None:
        super().__init__(words)
        self.again = again

    def __del__(self) -> None:
        self.again()


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


@dataclass(eq=False)
class Guard:
    """What is counted of the learner's lines, between the beginning and the end of ``bounded``."""

    left: int
    clock: LearnerClock
    ours: FrameType  # all frames below it are the learner's, or what they call
    grace: int = GRACE
    is_on: bool = True

    def on_call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        """Every call; of the learner's, each instruction is looked at."""
        try:
            return self.watch(frame) if is_learners(frame.f_code.co_filename) else None
        except BaseException:  # a full stack, Ctrl-C: Python lets go of the watch once it is out
            self.watch(frame)
            raise

    def watch(self, frame: FrameType) -> Watch:
        """Have a frame's instructions looked at."""
        frame.f_trace_opcodes = True
        if not isinstance(frame.f_trace, Watch) or frame.f_trace.args != (self,):
            frame.f_trace = Watch(Guard.look, self)
        return frame.f_trace

    def look(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        """One event of a frame of the learner's."""
        if not self.is_on:
            return None
        self.left -= event == "opcode"
        has_time = self.grace < GRACE or self.clock.seconds <= MOST_SECONDS
        if self.left < 0 or not has_time:
            raise self.too_long()
        return frame.f_trace

    def too_long(self) -> TooLong:
        """What is raised now; if it is caught and kept, their lines can't go on for long."""
        words = "" if self.left < 0 else _so_long(self.clock)
        self.left, self.grace = self.grace, self.grace // 2
        return TooLong(words, self.at_once)

    def at_once(self) -> None:
        """Let go of: whatever instruction is next is one too many."""
        self.left = -1
        self.again()

    def again(self) -> None:
        """Look at the learner's instructions again, after Python has forgotten it."""
        frame: FrameType | None = sys._getframe(1) if self.is_on else None
        while frame is not None and frame is not self.ours:
            if is_learners(frame.f_code.co_filename):
                self.watch(frame)
            frame = frame.f_back
        if self.is_on:
            sys.settrace(self.on_call)


class Watch(partial[Any]):
    """``Guard.look`` for one frame.

    Python forgets what traces it when that raises, whatever it is: Ctrl-C may strike in there as
    well. Then the frame loses this, which nobody else knows, and so it begins again at once.
    """

    def __del__(self) -> None:
        """Where the learner's lines are running and nothing traces them, this has been lost."""
        guard: Guard = self.args[0]
        if guard.is_on and guard.clock.since is not None and sys.gettrace() is None:
            guard.again()


@contextmanager
def bounded(most: int = MOST_OPCODES) -> Iterator[None]:
    """Count the learner's instructions as they run, whoever calls them, and their seconds.

    Not their lines: ``while True: pass`` never gets to another one. A single call that does not
    come back can't be cut off.

    Raises:
        TooLong: there were more than ``most``, or the check's seconds are used up.
    """
    before, clock = sys.gettrace(), _clocks[-1]
    was_running = clock.since is not None
    guard = Guard(most, clock, sys._getframe(2))
    clock.start()
    sys.settrace(guard.on_call)
    try:
        yield
    finally:
        guard.is_on = False
        sys.settrace(before)
        if not was_running:
            clock.stop()


def _so_long(clock: LearnerClock) -> str:
    return f"your lines took {clock.seconds:.0f} s in this check, and it stops there"


def unwatched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the package as a learner calls it: inside it, nothing is counted."""

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        before, clock = sys.gettrace(), _clocks[-1]
        was_running = clock.since is not None
        sys.settrace(None)
        clock.stop()
        try:
            if is_late():
                raise TooLong(_so_long(clock))
            return function(*args, **options)
        finally:
            if was_running:
                clock.start()
            sys.settrace(before)

    return call
