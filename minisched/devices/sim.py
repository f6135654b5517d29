"""A simulated device: one virtual clock, streams that take time, memory that changes late.

Deterministic, standard library only. An op reads memory when it starts and its writes appear when
it ends, so a missing wait shows as a wrong token and not only as a warning.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ..trace import Recorder, Slice
from .base import NO_LABEL, Label
from .sim_memory import SimMemory
from .vector import Vector, VectorArrays

FINISH, START = 0, 1  # at one instant, ops finish before others start


class Deadlock(RuntimeError):
    """The host waits for an op that can never run."""


class SimOp:
    """A launched op. ``writes`` holds what it wrote until it ends."""

    def __init__(self, stream: SimStream, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.stream = stream
        self.fn = fn
        self.args = args
        self.name = ""
        self.cost = 0
        self.label = NO_LABEL
        self.slice_id = 0
        self.start = 0
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.writes: dict[SimMemory, dict[int, int]] = {}
        self.when_done: list[Callable[[], None]] = []

    def query(self) -> bool:
        """Whether it has ended by now."""
        return self.done

    def synchronize(self) -> Any:
        """Let virtual time pass until it has ended; return its value or raise its error."""
        self.stream.device.run_until_done(self)
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        """Compute the value from memory as it is now; an argument's error is passed on."""
        try:
            for arg in self.args:
                if isinstance(arg, SimOp) and arg.error is not None:
                    raise arg.error
            values = [arg.value if isinstance(arg, SimOp) else arg for arg in self.args]
            self.value = self.fn(*values)
        except Exception as error:
            self.error = error


class SimStream:
    """A queue of ops and waits, worked off one at a time."""

    def __init__(self, device: SimDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.queue: deque[tuple[str, SimOp]] = deque()
        self.is_busy = False

    def launch(
        self, fn: Callable[..., Any], *args: Any, name: str, cost: int = 0, label: Label = NO_LABEL
    ) -> SimOp:
        """Queue an op that takes ``cost`` nanoseconds."""
        op = SimOp(self, fn, args)
        op.name, op.cost, op.label = name, cost, label
        op.slice_id = self.device.recorder.new_id()
        self.queue.append(("run", op))
        self.advance()
        return op

    def wait(self, op: SimOp) -> None:
        """Hold back what follows until ``op`` has ended."""
        self.queue.append(("wait", op))
        self.advance()

    def advance(self) -> None:
        """Start the next op, unless one is running or a wait holds it back."""
        while self.queue and not self.is_busy:
            action, op = self.queue[0]
            if action == "wait" and not op.done:
                op.when_done.append(self.advance)
                return
            self.queue.popleft()
            if action == "run":
                self.is_busy = True
                self.device.at(self.device.time, START, partial(self._start, op))

    def _start(self, op: SimOp) -> None:
        op.start = self.device.time
        self.device.running, outer = op, self.device.running
        op.run()
        self.device.running = outer
        self.device.at(op.start + op.cost, FINISH, partial(self._finish, op))

    def _finish(self, op: SimOp) -> None:
        for memory, writes in op.writes.items():
            memory.apply(writes)
        op.done, self.is_busy = True, False
        self.device.record(self.name, op.name, op.start, op.label, op.slice_id)
        for callback in op.when_done:
            callback()
        self.advance()


class SimDevice:
    """The clock, the heap of what happens next, and the streams (``devices/base.py:Device``)."""

    name = "sim"
    clock = "virtual"

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.recorder.now = self.now
        self.xp = VectorArrays()
        self.time = 0
        self.running: SimOp | None = None
        self._streams: dict[str, SimStream] = {}
        self._heap: list[tuple[int, int, int, Callable[[], None]]] = []
        self._sequence = 0

    def now(self) -> int:
        """Virtual nanoseconds since the start."""
        return self.time

    @contextmanager
    def host(self, phase: str, cost: int = 0, label: Label = NO_LABEL) -> Iterator[int]:
        """Spend ``cost``: everything that ends meanwhile takes effect, and then the body runs."""
        start, slice_id = self.time, self.recorder.new_id()
        self.idle_until(start + cost)
        self.record("host", phase, start, label, slice_id)
        yield slice_id

    def stream(self, name: str) -> SimStream:
        """The stream of that name."""
        return self._streams.setdefault(name, SimStream(self, name))

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

    def flush(self, *ops: SimOp) -> None:
        """Nothing to do: launching is enough."""

    def clear_cache(self) -> None:
        """Nothing is cached; the moment is marked."""
        self.recorder.mark("clear cache")

    def idle_until(self, time: int) -> None:
        """Run everything that happens up to ``time``, and move the clock there."""
        while self._heap and self._heap[0][0] <= time:
            self._run_next()
        self.time = max(self.time, time)

    def run_until_done(self, op: SimOp) -> None:
        """Let time pass until ``op`` is done.

        Raises:
            Deadlock: nothing is left that could happen.
        """
        while not op.done:
            if not self._heap:
                raise Deadlock(f"the host waits for {op.name}, and nothing is left that could run")
            self._run_next()
        self.idle_until(self.time)

    def close(self) -> None:
        """Drop what is queued."""
        self._heap.clear()

    @property
    def is_idle(self) -> bool:
        """Whether no stream has anything left to do."""
        return not self._heap and not any(s.queue or s.is_busy for s in self._streams.values())

    def at(self, time: int, order: int, action: Callable[[], None]) -> None:
        """Let ``action`` happen at ``time``; finishes come before starts, then first come."""
        self._sequence += 1
        heapq.heappush(self._heap, (time, order, self._sequence, action))

    def record(self, lane: str, name: str, start: int, label: Label, slice_id: int) -> None:
        """Record a slice that ends now."""
        self.recorder.slice(
            Slice(slice_id, lane, name, start, self.time, label.step, label.mode, label.rids)
        )

    def _run_next(self) -> None:
        self.time, _, _, action = heapq.heappop(self._heap)
        action()
