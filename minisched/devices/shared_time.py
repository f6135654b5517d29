"""Host and device share one machine: while both work, each slows the other one down."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from .cost import Pace

Action = Callable[[], None]
FULL = 1000  # nanoseconds of work in 1000 nanoseconds, for a side that works alone


class Clock(Protocol):
    """The part of the simulated device that ``SharedTime`` uses."""

    time: int
    heap: list[Any]  # of entries that are due later

    def at(self, time: int, action: Action) -> Any:
        """Schedule ``action`` at ``time``; return the entry."""

    def idle_until(self, time: int) -> None:
        """Run all entries up to ``time``, and move the clock there."""


@dataclass(eq=False)
class Task:
    """Work of the host or of a stream; ``left`` is the remaining time, in picoseconds."""

    is_host: bool
    left: int
    done: Action
    entry: Any = None  # of its end, on the clock


class SharedTime:
    """Advances all work at its current rate (``Pace.host_lost``).

    When work begins or ends, the remaining time of all other work is updated, and its end is moved.
    All numbers are integers, so the same run gives the same trace.
    """

    def __init__(self, clock: Clock, pace: Pace) -> None:
        self.clock = clock
        self.lost = {True: pace.host_lost, False: pace.device_lost}
        self.tasks: list[Task] = []
        self.settled = 0

    def begin(self, cost: int, is_host: bool, done: Action) -> None:
        """Begin work that takes ``cost`` nanoseconds alone, and call ``done`` at its end."""
        self._settle()
        self.tasks.append(Task(is_host, cost * FULL, done))
        self._move_ends()

    def work(self, cost: int) -> None:
        """Let the host work for ``cost`` nanoseconds, or longer next to the device."""
        is_over: list[bool] = []
        self.begin(cost, True, lambda: is_over.append(True))
        while not is_over:
            self.clock.idle_until(self.clock.heap[0][0])

    def _rate(self, task: Task) -> int:
        is_beside = any(other.is_host != task.is_host for other in self.tasks)
        return FULL - self.lost[task.is_host] if is_beside else FULL

    def _settle(self) -> None:
        """Subtract the work done since the last change."""
        passed, self.settled = self.clock.time - self.settled, self.clock.time
        for task in self.tasks:
            task.left = max(0, task.left - passed * self._rate(task))

    def _move_ends(self) -> None:
        for task in self.tasks:
            self._cancel(task.entry)
            takes = -(-task.left // self._rate(task))
            task.entry = self.clock.at(self.clock.time + takes, partial(self._end, task))

    def _cancel(self, entry: Any) -> None:
        """Drop an entry that is not due yet."""
        if entry in self.clock.heap:
            self.clock.heap.remove(entry)
            heapq.heapify(self.clock.heap)

    def _end(self, task: Task) -> None:
        self._settle()
        self.tasks.remove(task)
        self._move_ends()
        task.done()
