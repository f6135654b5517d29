"""A learner's lines can't hang the notebook: their instructions and their seconds are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from time import monotonic
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from .blame import is_learners

P = ParamSpec("P")
R = TypeVar("R")
MOST_OPCODES = 200_000  # of the learner's, in one run; what is right takes a few thousand
MOST_SECONDS = 20.0  # of the learner's lines, in one check; what is right takes one or two


class TooLong(BaseException):
    """The learner's lines go on and on.

    Python forgets what traces it when that raises. So where lines of theirs catch this, it comes
    to life again as soon as it is let go of: at the next instruction it is raised once more.
    """

    def __init__(self, words: str = "", again: Callable[[], None] = lambda: None) -> None:
        super().__init__(words)
        self.again = again

    def __del__(self) -> None:
        self.again()


@dataclass
class Clock:
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


_clocks = [Clock()]  # of the check that is running; the newest is last


def is_late() -> bool:
    """Whether the learner's lines have used up their time in this check."""
    return _clocks[-1].seconds > MOST_SECONDS


def in_time(check: Callable[P, R]) -> Callable[P, R]:
    """A check with a clock of its own."""

    @wraps(check)
    def timed(*args: P.args, **options: P.kwargs) -> R:
        _clocks.append(Clock())
        try:
            return check(*args, **options)
        finally:
            _clocks.pop()

    return timed


@dataclass
class Guard:
    """What is counted of the learner's lines, between the beginning and the end of ``bounded``."""

    left: int
    clock: Clock
    ours: FrameType  # all frames below it are the learner's, or what they call
    is_on: bool = True
    has_said_so: bool = False  # a TooLong is on its way, or kept by somebody

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
        if not isinstance(frame.f_trace, Watch) or frame.f_trace.guard is not self:
            watch = Watch()
            watch.guard = self
            frame.f_trace = watch
        return frame.f_trace

    def again(self) -> None:
        """Look at the learner's instructions again, after Python has forgotten it."""
        frame: FrameType | None = sys._getframe(1) if self.is_on else None
        while frame is not None and frame is not self.ours:
            if is_learners(frame.f_code.co_filename):
                self.watch(frame)
            frame = frame.f_back
        if self.is_on:
            self.has_said_so = False
            sys.settrace(self.on_call)


class Watch:
    """What looks at one frame's instructions.

    Python forgets what traces it when that raises, whatever it is: Ctrl-C may strike in here as
    well. If it was not the guard's own word, the frame loses this, and so it begins again at once.
    """

    guard: Guard  # set from outside: on a full stack there is no room for another call

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Watch | None:
        """One event of the frame."""
        guard = self.guard
        if not guard.is_on:
            return None
        guard.left -= event == "opcode"
        if guard.left < 0 or guard.clock.seconds > MOST_SECONDS:
            words = "" if guard.left < 0 else _so_long(guard.clock)
            guard.has_said_so = True
            raise TooLong(words, guard.again)
        return self

    def __del__(self) -> None:
        """Where the learner's lines are running and nothing traces them, this has been lost."""
        guard = self.guard
        is_lost = sys.gettrace() is None and guard.clock.since is not None
        if guard.is_on and is_lost and not guard.has_said_so:
            guard.again()


@contextmanager
def bounded(most: int = MOST_OPCODES) -> Iterator[None]:
    """Count the learner's instructions as they run, whoever calls them, and their seconds.

    Not their lines: ``while True: pass`` never gets to another one. A single call that does not
    come back, or an ``except`` that itself runs for ever, can't be cut off.

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


def _so_long(clock: Clock) -> str:
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
