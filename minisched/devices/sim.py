"""A simulated machine: a host, the streams that it launches on, and memory, on one virtual clock.

One heap holds the future events by time. Python code takes no virtual time. The clock advances only
in three calls of the host: ``host``, ``synchronize`` and ``idle_until``. ``host`` is a phase: the
clock advances by its cost, ops that end meanwhile take effect, and then the body of the phase runs.
``synchronize`` waits for an op, and ``idle_until`` sleeps.

A stream is a queue. An op starts after the op before it and after the events that the stream waits
for, and takes its cost. It reads memory at its start, and its writes appear at its end. So a
missing wait gives a wrong token, not only a warning.

Times are integers, and entries at one instant have an order. So the same run gives the same trace,
byte for byte. Only the standard library is needed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import add
from typing import Any

from ..trace import Recorder, Slice, Touch
from .base import NO_LABEL, WRONG_TOKEN, Device, Event, Label, Op, OrNone, Signal
from .cost import IDEAL_PACE, Pace
from .shared_time import Action, SharedTime

FINISH, START = 0, 1  # at one instant, FINISH comes first
Entry = tuple[int, int, int, Action]  # time, FINISH or START, sequence


class Deadlock(RuntimeError):
    """The host waits for an op that can never run."""


class SimDevice(Device):
    """The clock, the heap of future events, and the streams."""

    name = "sim"
    clock = "virtual"

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder()
        self.recorder.now = self.now
        self.xp = VectorArrays()
        self.time = 0
        self.running: SimOp | None = None  # the op that computes now
        self.failed: set[int] = set()  # ops that failed
        self.on_access: Callable[[SimMemory, Any, bool], None] | None = None  # called for each
        self._lanes: dict[str, SimStream] = {}  # streams, and threads of the host
        self.heap: list[Entry] = []
        self._sequence = 0
        self.keep_pace(IDEAL_PACE)

    def now(self) -> int:
        """Return the virtual nanoseconds since the start."""
        return self.time

    def at(self, time: int, action: Action, order: int = FINISH) -> Entry:
        """Schedule ``action`` at ``time``; FINISH comes before START, then the first one added."""
        self._sequence += 1
        entry = (time, order, self._sequence, action)
        heapq.heappush(self.heap, entry)
        return entry

    def idle_until(self, time: int) -> None:
        """Run all events up to ``time``, and move the clock there."""
        while self.heap and self.heap[0][0] <= time:
            self._run_next()
        self.time = max(self.time, time)

    def run_until_done(self, op: SimEvent) -> None:
        """Advance the clock until ``op`` is done.

        Raises:
            Deadlock: the heap is empty, so no event can end the wait.
        """
        had_to_wait = not op.done
        while not op.done:
            if not self.heap:
                raise Deadlock(f"the host waits for {op.name}, and nothing is left that could run")
            self._run_next()
        self.idle_until(self.time + (self.pace.wake if had_to_wait else 0))

    def work(self, cost: int) -> None:
        """Let the host work for ``cost``, or longer if the ops that run meanwhile slow it down."""
        if self._shared is None:
            self.idle_until(self.time + cost)
        else:
            self._shared.work(cost)

    def finish_after(self, cost: int, is_host: bool, action: Action) -> None:
        """Schedule ``action`` at the end of an op that takes ``cost`` alone."""
        if self._shared is None:
            self.at(self.time + cost, action)
        else:
            self._shared.begin(cost, is_host, action)

    def keep_pace(self, pace: Pace) -> None:
        """Set the delays of a real machine between phases and ops, before the run."""
        self.pace = pace
        self._shared = SharedTime(self, pace) if pace.is_shared else None

    @property
    def next_event(self) -> int | None:
        """Return the time of the next event, or None."""
        return self.heap[0][0] if self.heap else None

    def _run_next(self) -> None:
        self.time, _, _, action = heapq.heappop(self.heap)
        action()

    # -- phases, streams, memory (``devices/base.py:Device``)

    @contextmanager
    def host(self, phase: str, cost: int = 0, label: Label = NO_LABEL) -> Iterator[int]:
        """Spend ``cost``, run the body, spend the machine's delay. Yield the slice's id."""
        start, slice_id = self.time, self.recorder.new_id()
        self.work(cost)
        self.record("host", phase, start, label, slice_id)
        self.recorder.enter("host", slice_id)
        yield slice_id
        if behind := self.pace.after.get(phase, 0):
            self.work(behind)

    def stream(self, name: str) -> SimStream:
        """Return the stream of that name."""
        return self._lanes.setdefault(name, SimStream(self, name))

    def thread(self, name: str) -> SimStream:
        """Return a second thread of the host."""
        return self._lanes.setdefault(name, SimStream(self, name, is_thread=True))

    def signal(self, name: str) -> SimSignal:
        """Return a new signal."""
        return SimSignal(self, name, self.recorder.new_id())

    def memory(self, name: str, size: int) -> SimMemory:
        """Return device memory; writes appear when the writing op ends."""
        return SimMemory(self, name, size)

    host_memory = memory  # the target of a copy is the same kind, so a copy takes time too

    def copy_to_host(self, dst: SimMemory, src: SimMemory, size: int) -> Vector:
        """Copy ``size`` integers and return them."""
        values: Vector = src[:size]
        dst[:size] = values
        return values

    def flush(self, *ops: Op) -> None:
        """Do nothing: no op is lazy."""

    def bring_to_host(self, values: Any) -> Any:
        """Return the array itself, because no op changes the result of another one."""
        return values

    def close(self) -> None:
        """Do nothing: there is no thread to end."""

    def record(self, lane: str, name: str, start: int, label: Label, slice_id: int) -> None:
        """Record a slice that ends now."""
        self.recorder.slice(Slice(slice_id, lane, name, start, self.time, **vars(label)))


# -- Ops on streams, and other events --------------------------------------------------------------


class SimEvent(Event):
    """An event at one moment; every waiter continues at that moment."""

    def __init__(self, device: SimDevice, name: str, slice_id: int) -> None:
        self.device, self.name, self.slice_id = device, name, slice_id
        self.recorder = device.recorder
        self.done = False
        self.when_done: list[Action] = []

    def happen(self) -> None:
        """Mark it as done now, and let the waiters continue."""
        self.done = True
        for callback in self.when_done:
            callback()

    def _has_ended(self) -> bool:
        return self.done

    def _wait(self) -> None:
        self.device.run_until_done(self)


class SimSignal(SimEvent, Signal):
    """An event that the host sets (``devices/base.py:Signal``)."""

    def set(self) -> None:
        """Set it; further calls do nothing."""
        if not self.done:
            self.recorder.say(self.slice_id)
            self.happen()


class SimOp(SimEvent, Op):
    """A launched op; ``writes`` holds its writes until it ends."""

    def __init__(
        self,
        device: SimDevice,
        name: str,
        slice_id: int,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        cost: int,
    ) -> None:
        super().__init__(device, name, slice_id)
        self.fn, self.args, self.cost = fn, args, cost
        self.start = 0
        self.writes: dict[SimMemory, dict[int, int]] = {}

    def synchronize(self) -> Any:
        """Advance the clock until it has ended; return its value, or raise its error."""
        self._wait()
        self.recorder.wait(self.slice_id)
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        """Compute the value from memory as it is now; pass an argument's error on."""
        try:
            for arg in self.args:
                if isinstance(arg, Op) and arg.error is not None:
                    raise arg.error
            args = [arg.value if isinstance(arg, (Op, OrNone)) else arg for arg in self.args]
            self.value = self.fn(*args)
        except Exception as error:
            self.error = error
            self.device.failed.add(self.slice_id)
        self.args = ()  # or a chain of lazy steps would keep all earlier ones


class SimStream:
    """A queue of ops and waits, which run one at a time.

    A thread of the host is one too, but the effects of its call appear only at the end.
    """

    def __init__(self, device: SimDevice, name: str, is_thread: bool = False) -> None:
        self.device, self.name, self.is_thread = device, name, is_thread
        self.queue: deque[tuple[str, Any]] = deque()  # "run" or "wait", and the op or event
        self.is_busy = False

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> SimOp:
        """Queue an op that takes ``cost`` nanoseconds."""
        given = None if self.is_thread else touches  # a thread's call records its own acts
        sources = (getattr(arg, "slice_id", 0) for arg in args)  # read only if it records
        slice_id = self.device.recorder.launch(
            name, lane=self.name, touches=given, uses=sources, **vars(label)
        )
        op = SimOp(self.device, name, slice_id, fn, args, cost)
        self.queue.append(("run", op))
        self.advance()
        return op

    def wait(self, op: Event) -> None:
        """Start later launches only after ``op`` has ended."""
        if not self.is_thread:
            op.recorder.wait(op.slice_id, self.name)
        self.queue.append(("wait", op))
        self.advance()

    def advance(self) -> None:
        """Start the next op, unless another one runs or the stream waits."""
        while self.queue and not self.is_busy:
            action, op = self.queue[0]
            if action == "wait" and not op.done:
                op.when_done.append(self.advance)
                return
            self.queue.popleft()
            if action == "run":
                self.is_busy = True
                ready = self.device.time + self.device.pace.start.get(op.name, 0)
                self.device.at(ready, partial(self._start, op), START)
            elif self.is_thread:
                op.recorder.wait(op.slice_id, self.name)

    def _start(self, op: SimOp) -> None:
        op.start = self.device.time
        if not self.is_thread:
            self.device.running, outer = op, self.device.running
            op.run()
            self.device.running = outer
        self.device.finish_after(op.cost, self.is_thread, partial(self._finish, op))

    def _finish(self, op: SimOp) -> None:
        if self.is_thread:
            with self.device.recorder.run(op.slice_id, op.start):
                op.run()
        for memory, writes in op.writes.items():
            memory.apply(writes, op.slice_id)
        self.is_busy = False
        self.device.recorder.ended(op.slice_id, op.start, self.device.time)
        op.happen()
        self.advance()


# -- Arrays ----------------------------------------------------------------------------------------


class Vector(list[int]):
    """A list with the element-wise operators of a tensor."""

    def __getitem__(self, index: Any) -> Any:
        """Return one integer by int, or a vector by slice or by a sequence of indices."""
        if isinstance(index, int):
            return super().__getitem__(index)
        if isinstance(index, slice):
            return Vector(super().__getitem__(index))
        return Vector(map(super().__getitem__, index))

    def __lt__(self, bound: int) -> list[bool]:  # type: ignore[override]
        return [value < bound for value in self]

    def __neg__(self) -> Vector:
        return Vector([-value for value in self])

    def __add__(self, other: Sequence[int]) -> Vector:  # type: ignore[override]
        return Vector(map(add, self, other))

    def __sub__(self, other: int) -> Vector:
        return Vector([value - other for value in self])

    def tolist(self) -> list[int]:
        """Return a plain list."""
        return list(self)


class VectorArrays:
    """The array functions of ``devices/base.py:Arrays``, for vectors."""

    def asarray(self, values: Sequence[int]) -> Vector:
        """Return a vector of ``values``."""
        return Vector(values)

    def asarrays(self, *columns: Sequence[int]) -> list[Vector]:
        """Return a vector for each."""
        return list(map(self.asarray, columns))

    def where(self, condition: Sequence[bool], a: Vector, b: Vector) -> Vector:
        """Return ``a`` where the condition holds, and ``b`` elsewhere."""
        return Vector([x if chosen else y for chosen, x, y in zip(condition, a, b, strict=True)])

    def clamp(self, values: Vector, min: int) -> Vector:
        """Return the values, with ``min`` for each lower one."""
        return Vector([value if value > min else min for value in values])

    def mask(self, values: Sequence[bool]) -> list[bool]:
        """Return the booleans as they are."""
        return list(values)

    def count_equal(self, a: Vector, b: Vector, width: int, num_rows: int) -> Vector:
        """Return 1 + the number of leading equal elements of each of ``num_rows``, [num_rows]."""
        equal = [x == y for x, y in zip(a, b, strict=True)]
        rows = (equal[at * width : at * width + width] for at in range(num_rows))
        return Vector([1 + [*row, False].index(False) for row in rows])


# -- Memory: an op reads it at its start, and changes it at its end --------------------------------


class SimMemory:
    """``size`` integers. An op reads its own writes immediately, other ops read them at its end."""

    def __init__(self, device: SimDevice, name: str, size: int) -> None:
        self.device, self.name = device, name
        self.values = [WRONG_TOKEN] * size
        self.is_followed = False  # True: ``writers`` is kept
        self.writers: dict[int, int] = {}  # cell -> slice id of the op that wrote it last

    def __getitem__(self, index: Any) -> Any:
        """Return one integer by int, or a vector by slice or by a sequence of indices."""
        op, values = self.device.running, self.values
        if self.device.on_access is not None:
            self.device.on_access(self, index, False)
        own = op.writes.get(self, {}) if op else {}
        if isinstance(index, int):
            return own.get(index, values[index])
        if not own:
            return Vector([values[at] for at in self.indices(index)])
        return Vector([own.get(at, values[at]) for at in self.indices(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write one integer, or one for each index."""
        op = self.device.running
        if self.device.on_access is not None:
            self.device.on_access(self, index, True)
        if isinstance(index, int):
            index, value = (index,), (value,)
        writes = dict(zip(self.indices(index), value, strict=True))
        if op is None:
            self.apply(writes, 0)
        else:
            op.writes.setdefault(self, {}).update(writes)

    def apply(self, writes: dict[int, int], op: int) -> None:
        """Apply the writes of an op, or of the host (0)."""
        for at, value in writes.items():
            self.values[at] = value
        if self.is_followed:
            self.writers.update(dict.fromkeys(writes, op))

    def indices(self, index: Any) -> Iterable[int]:
        """Return the cells of a slice or of a sequence."""
        return range(len(self.values))[index] if isinstance(index, slice) else index
