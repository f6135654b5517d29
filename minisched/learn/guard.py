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


@contextmanager
def bounded(most: int = MOST_OPCODES) -> Iterator[None]:
    """Count the learner's instructions as they run, whoever calls them, and their seconds.

    Not their lines: ``while True: pass`` never gets to another one. A single call that does not
    come back, or an ``except`` that itself runs for ever, can't be cut off.

    Raises:
        TooLong: there were more than ``most``, or the check's seconds are used up.
    """
    left, before, is_on, clock = most, sys.gettrace(), True, _clocks[-1]
    was_running, ours = clock.since is not None, sys._getframe(2)

    def on_opcode(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        nonlocal left
        if not is_on:
            return None
        left -= event == "opcode"
        if left < 0 or clock.seconds > MOST_SECONDS:
            raise TooLong("" if left < 0 else _so_long(clock), again)
        return on_opcode

    def on_call(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not is_learners(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes = True
        return on_opcode

    def again() -> None:
        frame: FrameType | None = sys._getframe(2) if is_on else None
        while frame is not None and frame is not ours:
            if is_learners(frame.f_code.co_filename):
                frame.f_trace, frame.f_trace_opcodes = on_opcode, True
            frame = frame.f_back
        if is_on:
            sys.settrace(on_call)

    clock.start()
    sys.settrace(on_call)
    try:
        yield
    finally:
        is_on = False
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
