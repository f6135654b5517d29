"""Host and device at work on one machine: while both are, each takes something from the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from .cost import Pace

Action = Callable[[], None]
FULL = 1000  # of 1000 nanoseconds that pass, what a side gets done alone


class Clock(Protocol):
    """What is needed of the simulated device."""

    time: int

    def at(self, time: int, action: Action) -> Any:
        """Let ``action`` happen at ``time``; gives what ``cancel`` takes."""

    def cancel(self, entry: Any) -> None:
        """Let it not happen, if it has not."""


@dataclass(eq=False)
class Task:
    """Work of the host or of a stream; ``left`` is what remains, in thousandths of a nanosecond."""

    is_host: bool
    left: int
    done: Action
    entry: Any = None  # its end, on the clock


class SharedTime:
    """Lets work go on at the rate that it has at each moment (``Pace.host_lost``).

    Whenever work begins or ends, what is left of all other work is settled and its end is moved.
    All numbers are integers, so that the same run gives the same trace.
    """

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self.clock = clock
        self.lost = {True: pace.host_lost, False: pace.device_lost}
        self.tasks: list[Task] = []
        self.settled = 0

    def begin(self, cost: int, is_host: bool, done: Action) -> None:
        """Work that would take ``cost`` nanoseconds alone; calls ``done`` when it is over."""
        self._settle()
        self.tasks.append(Task(is_host, cost * FULL, done))
        self._move_ends()

    def _rate(self, task: Task) -> int:
        is_beside = any(other.is_host != task.is_host for other in self.tasks)
        return FULL - self.lost[task.is_host] if is_beside else FULL

    def _settle(self) -> None:
        """Take off what was done since the last change."""
        passed, self.settled = self.clock.time - self.settled, self.clock.time
        for task in self.tasks:
            task.left = max(0, task.left - passed * self._rate(task))

    def _move_ends(self) -> None:
        for task in self.tasks:
            self.clock.cancel(task.entry)
            takes = -(-task.left // self._rate(task))
            task.entry = self.clock.at(self.clock.time + takes, partial(self._end, task))

    def _end(self, task: Task) -> None:
        self._settle()
        self.tasks.remove(task)
        self._move_ends()
        task.done()
