"""Host and device at once on a machine that they share: each takes something from the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from .cost import Pace

if TYPE_CHECKING:
    from .sim import Event, SimDevice

Side = Literal["host", "device"]
FULL = 1000  # of 1000 nanoseconds that pass, what a side gets done alone
FINISH = 0  # at one instant, ops finish before others start


@dataclass(eq=False)
class Task:
    """Work of one side; ``left`` is what remains, in thousandths of a nanosecond."""

    side: Side
    left: int
    done: Callable[[], None]
    event: Event | None = None  # its entry in the device's heap


class SharedTime:
    """Lets work go on at the rate that it has at each moment (``Pace.host_lost``).

    Whenever work begins or ends, what is left of all other work is settled and its end is moved.
    All numbers are integers, so that the same run gives the same trace.
    """

    def __init__(self, device: SimDevice, pace: Pace) -> None:
        self.device = device
        self.lost = {"host": pace.host_lost, "device": pace.device_lost}
        self.tasks: list[Task] = []
        self.settled = 0

    def begin(self, side: Side, cost: int, done: Callable[[], None]) -> None:
        """Call ``done`` when work has ended that would take ``cost`` nanoseconds alone."""
        self._settle()
        self.tasks.append(Task(side, cost * FULL, done))
        self._move_ends()

    def _rate(self, side: Side) -> int:
        is_beside = any(task.side != side for task in self.tasks)
        return FULL - self.lost[side] if is_beside else FULL

    def _settle(self) -> None:
        """Take off what was done since the last change."""
        passed, self.settled = self.device.time - self.settled, self.device.time
        rates = [self._rate(task.side) for task in self.tasks]
        for task, rate in zip(self.tasks, rates, strict=True):
            task.left = max(0, task.left - passed * rate)

    def _move_ends(self) -> None:
        for task in self.tasks:
            self.device.cancel(task.event)
            takes = -(-task.left // self._rate(task.side))
            task.event = self.device.at(self.device.time + takes, FINISH, partial(self._end, task))

    def _end(self, task: Task) -> None:
        self._settle()
        self.tasks.remove(task)
        self._move_ends()
        task.done()
