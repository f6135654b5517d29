"""A simulated device: one virtual clock, streams that take time, memory that changes late.

Deterministic, standard library only. An op reads memory when it starts and its writes appear when
it ends, so a missing wait shows as a wrong token and not only as a warning.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from ..trace import Recorder
from .base import NO_LABEL, Label
from .cost import IDEAL_PACE, Pace
from .sim_host import HostPhase
from .sim_memory import Accesses, SimMemory
from .sim_op import SimOp, SimSignal
from .sim_shared import FINISH, SharedTime, Side
from .sim_stream import SimStream, SimThread
from .vector import Vector, VectorArrays

Event = tuple[int, int, int, Callable[[], None]]  # time, order, sequence, action


class Deadlock(RuntimeError):
    """The host waits for an op that can never run."""


class SimDevice:
    """The clock, the heap of what happens next, and the streams (``devices/base.py:Device``).

    It may stand in for a device whose ops are ``built_by_host``: set that before it is used.
    """

    name = "sim"
    clock = "virtual"
    built_by_host = False
    lifetimes: Sequence[str] = ()

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.recorder.now = self.now
        self.xp = VectorArrays()
        self.time = 0
        self.running: SimOp | None = None
        self.accesses: Accesses | None = None  # noted from when there is something to note them in
        self._streams: dict[str, SimStream] = {}
        self._threads: dict[str, SimThread] = {}
        self._heap: list[Event] = []
        self._sequence = 0
        self.keep_pace(IDEAL_PACE)

    def keep_pace(self, pace: Pace) -> None:
        """Behave like a machine that needs time between phases and ops; before anything runs."""
        self.pace = pace
        self._shared = SharedTime(self, pace) if pace.is_shared else None

    def now(self) -> int:
        """Virtual nanoseconds since the start."""
        return self.time

    def host(self, phase: str, cost: int = 0, label: Label = NO_LABEL) -> HostPhase:
        """Spend ``cost``: everything that ends meanwhile takes effect, and then the body runs."""
        return HostPhase(self, phase, cost, label)

    def stream(self, name: str) -> SimStream:
        """The stream of that name."""
        return self._streams.setdefault(name, SimStream(self, name))

    def thread(self, name: str) -> SimThread:
        """A further thread of the host, which works beside it."""
        return self._threads.setdefault(name, SimThread(self, name))

    def signal(self, name: str) -> SimSignal:
        """A new signal."""
        return SimSignal(self, name)

    def memory(self, name: str, size: int) -> SimMemory:
        """Device memory whose writes appear when the writing op ends."""
        return SimMemory(self, name, size)

    def host_memory(self, name: str, size: int) -> SimMemory:
        """Memory a copy lands in; the same kind, so that a copy takes time too."""
        return SimMemory(self, name, size)

    def copy_to_host(self, dst: SimMemory, src: SimMemory, size: int) -> Vector:
        """Copy ``size`` integers and return them."""
        values: Vector = src[:size]
        dst[:size] = values
        return values

    def bring_to_host(self, values: Vector) -> Vector:
        """The values: what an op gives is never changed."""
        return values

    def flush(self, *ops: SimOp) -> None:
        """Nothing to do: launching is enough."""

    def clear_cache(self) -> None:
        """Nothing is cached; the moment is marked."""
        self.recorder.mark("clear cache")

    def count_memory(self) -> None:
        """Nothing is cached, so there is nothing to count."""

    def idle_until(self, time: int) -> None:
        """Run everything that happens up to ``time``, and move the clock there."""
        while self._heap and self._heap[0][0] <= time:
            self._run_next()
        self.time = max(self.time, time)

    def run_until_done(self, op: SimOp | SimSignal) -> None:
        """Let time pass until ``op`` is done.

        Raises:
            Deadlock: nothing is left that could happen.
        """
        had_to_wait = not op.done
        while not op.done:
            if not self._heap:
                raise Deadlock(f"the host waits for {op.name}, and nothing is left that could run")
            self._run_next()
        self.idle_until(self.time + (self.pace.wake if had_to_wait else 0))

    def work(self, cost: int) -> None:
        """Let the host work for as long as ``cost`` takes it, beside whatever runs meanwhile."""
        if self._shared is None:
            self.idle_until(self.time + cost)
            return
        ended: list[bool] = []
        self._shared.begin("host", cost, lambda: ended.append(True))
        while not ended:
            self._run_next()
        self.idle_until(self.time)

    def finish_after(self, cost: int, side: Side, action: Callable[[], None]) -> None:
        """Let ``action`` happen when an op has run that takes ``cost`` alone."""
        if self._shared is None:
            self.at(self.time + cost, FINISH, action)
        else:
            self._shared.begin(side, cost, action)

    def close(self) -> None:
        """Drop what is queued."""
        self._heap.clear()

    @property
    def next_event(self) -> int | None:
        """When something starts or ends next, or None."""
        return self._heap[0][0] if self._heap else None

    @property
    def is_idle(self) -> bool:
        """Whether no stream has anything left to do."""
        lanes = [*self._streams.values(), *self._threads.values()]
        return not self._heap and not any(lane.queue or lane.is_busy for lane in lanes)

    def at(self, time: int, order: int, action: Callable[[], None]) -> Event:
        """Let ``action`` happen at ``time``; finishes come before starts, then first come."""
        self._sequence += 1
        event = (time, order, self._sequence, action)
        heapq.heappush(self._heap, event)
        return event

    def cancel(self, event: Event | None) -> None:
        """Let it not happen, if it has not."""
        if event in self._heap:
            self._heap.remove(event)
            heapq.heapify(self._heap)

    def record(self, lane: str, name: str, start: int, label: Label, slice_id: int) -> None:
        """Record a slice that ends now."""
        self.recorder.ran(
            slice_id, lane, name, start, self.time, label.step, label.mode, label.rids
        )

    def _run_next(self) -> None:
        self.time, _, _, action = heapq.heappop(self._heap)
        action()
