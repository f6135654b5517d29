"""What threads hand each other: a call with its value, and a signal."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from ..trace import Program
from .base import NO_LABEL, OrNone, without_frames
from .host_work import spend


class Signal:
    """Something that one thread says and others wait for (``threading.Event``)."""

    def __init__(self, name: str, program: Program) -> None:
        self.name = name
        self.program = program
        self.slice_id = program.new_id()
        self.done = threading.Event()

    def set(self) -> None:
        """Say it; once is enough."""
        if not self.done.is_set():
            self.program.say(self.slice_id)
        self.done.set()

    def query(self) -> bool:
        """Whether it was said; who hears that it was, comes after it."""
        if self.done.is_set():
            self.program.wait(self.slice_id)
        return self.done.is_set()

    def synchronize(self) -> None:
        """Block this thread until it is said."""
        self.done.wait()
        self.program.wait(self.slice_id)


class ThreadOp:
    """A launched op: an event, and after it a value or an error."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        name: str,
        cost: int,
        program: Program,
    ) -> None:
        self.program = program
        self.fn = fn
        self.args = args
        self.name = name
        self.cost = cost
        self.slice_id = 0
        self.label = NO_LABEL
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def query(self) -> bool:
        """Whether it has ended; who hears that it has, comes after it."""
        if self.done.is_set():
            self.program.wait(self.slice_id)
        return self.done.is_set()

    def synchronize(self) -> Any:
        """Block this thread until it has ended; return its value or raise its error."""
        self.done.wait()
        self.program.wait(self.slice_id)
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        """Compute the value on this thread; an argument's error is passed on."""
        try:
            values = list(map(value_of, self.args))
            spend(self.cost)
            self.value = self.fn(*values)
        except BaseException as error:  # whatever it was, the host must hear of it
            self.error = without_frames(error)
        self.args = ()  # they may hold the step before, and that one the step before it

    def drop(self, error: BaseException) -> None:
        """It will never be run; whoever waits for it hears why."""
        self.error, self.args = error, ()
        self.done.set()


def value_of(arg: Any) -> Any:
    """What an op is given for an argument: for another op its value, or the error that it had."""
    if isinstance(arg, OrNone):
        return arg.value
    return arg.synchronize() if isinstance(arg, ThreadOp) else arg
