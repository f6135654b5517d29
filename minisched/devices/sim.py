"""A simulated device: one virtual clock, streams that take time, memory that changes late.

Deterministic, standard library only. An op reads memory when it starts and its writes appear when
it ends, so a missing wait shows as a wrong token and not only as a warning.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, Literal, NamedTuple

from ..trace import Recorder, Touch
from .base import NO_LABEL, WRONG_TOKEN, Label, OrNone
from .cost import IDEAL_PACE, Pace

# -- Integers with just enough array arithmetic that a relay reads the same on sim and on torch ----


class Vector(list[int]):
    """A list whose operators work element by element, as a tensor's do."""

    def __getitem__(self, index: Any) -> Any:
        """One integer by int, a vector by slice or by a sequence of indices."""
        if isinstance(index, int):
            return super().__getitem__(index)
        if isinstance(index, slice):
            return Vector(super().__getitem__(index))
        return Vector(self[at] for at in index)

    def __lt__(self, bound: int) -> list[bool]:  # type: ignore[override]
        return [value < bound for value in self]

    def __neg__(self) -> Vector:
        return Vector(-value for value in self)

    def __sub__(self, other: int) -> Vector:
        return Vector(value - other for value in self)

    def tolist(self) -> list[int]:
        """A plain list."""
        return list(self)


class VectorArrays:
    """The array functions of ``devices/base.py:Arrays``, for vectors."""

    def asarray(self, values: Sequence[int]) -> Vector:
        """A vector of ``values``."""
        return Vector(values)

    def asarrays(self, *columns: Sequence[int]) -> list[Vector]:
        """A vector for each."""
        return [self.asarray(values) for values in columns]

    def where(self, condition: Sequence[bool], a: Vector, b: Vector) -> Vector:
        """``a`` where the condition holds, else ``b``."""
        return Vector(x if chosen else y for chosen, x, y in zip(condition, a, b, strict=True))

    def mask(self, values: Sequence[bool]) -> list[bool]:
        """The booleans as they are."""
        return list(values)

    def add(self, a: Vector, b: Vector) -> Vector:
        """Sums, element by element."""
        return Vector(x + y for x, y in zip(a, b, strict=True))

    def count_equal(self, a: Vector, b: Vector, width: int, num_rows: int) -> Vector:
        """1 and the equal elements that each row of [num_rows * width] begins with, [num_rows]."""
        pairs = list(zip(a, b, strict=True))
        rows = (pairs[at * width : at * width + width] for at in range(num_rows))
        return Vector(
            1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], row)) for row in rows
        )

    def rows_at(self, matrix: Sequence[list[float]], at: Vector) -> list[list[float]]:
        """Some rows of logits, in the order of ``at``."""
        return [matrix[row] for row in at]

    def clamp(self, values: Vector, min: int) -> Vector:
        """Values below ``min`` raised to it."""
        return Vector(value if value > min else min for value in values)


# -- Memory of the simulated device: read as it is when an op starts, changed when the op ends -----


class Access(NamedTuple):
    """What an op, or the host (0), did to cells of a memory; ``cells`` as it was indexed."""

    op: int
    memory: SimMemory
    cells: Any
    is_write: bool


class Accesses(list[Access]):
    """Every access to the memory of simulated devices, in order (``checks/touches.py``).

    ``failed`` are the ops that stopped on their way.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed: set[int] = set()

    def note(self, memory: SimMemory, cells: Any, is_write: bool) -> None:
        """An op, a call on a thread of the host, or the host accesses memory."""
        op, program = memory.device.running, memory.device.recorder.program
        who = op.slice_id if op else 0 if program.lane == "host" else program.op
        self.append(Access(who, memory, cells, is_write))


class SimMemory:
    """``size`` integers. An op sees its own writes at once; everybody else sees them at its end."""

    def __init__(self, device: SimDevice, name: str, size: int) -> None:
        self.device = device
        self.name = name
        self.values = [WRONG_TOKEN] * size
        self.is_followed = False
        self.writers: dict[int, int] = {}  # cell -> slice id of the op it was written by last

    def follow(self) -> None:
        """Remember from now on who has written each cell."""
        self.is_followed = True

    def __getitem__(self, index: Any) -> Any:
        """One integer by int, or a vector by slice or by a sequence of indices."""
        op, accesses = self.device.running, self.device.accesses
        if accesses is not None:
            accesses.note(self, index, False)
        own = op.writes.get(self, {}) if op else {}
        if isinstance(index, int):
            return own.get(index, self.values[index])
        return Vector(own.get(at, self.values[at]) for at in self.indices(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        """Write one integer, or one for each index."""
        op, accesses = self.device.running, self.device.accesses
        if accesses is not None:
            accesses.note(self, index, True)
        if isinstance(index, int):
            index, value = (index,), (value,)
        writes = dict(zip(self.indices(index), value, strict=True))
        if op is None:
            self.apply(writes, 0)
        else:
            op.writes.setdefault(self, {}).update(writes)

    def apply(self, writes: dict[int, int], op: int) -> None:
        """Let the writes of an op, or of the host (0), take effect."""
        for at, value in writes.items():
            self.values[at] = value
        if self.is_followed:
            self.writers.update(dict.fromkeys(writes, op))

    def indices(self, index: Any) -> Iterable[int]:
        """The cells that a slice or a sequence means."""
        return range(len(self.values))[index] if isinstance(index, slice) else index


# -- What the simulated device is asked for: ops, which take virtual time, and signals -------------


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
        """Whether it has ended by now; who hears that it has, comes after it."""
        if self.done:
            self.stream.device.recorder.program.wait(self.slice_id)
        return self.done

    def synchronize(self) -> Any:
        """Let virtual time pass until it has ended; return its value or raise its error."""
        self.stream.device.run_until_done(self)
        self.stream.device.recorder.program.wait(self.slice_id)
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        """Compute the value from memory as it is now; an argument's error is passed on."""
        try:
            self.value = self.fn(*map(value_of, self.args))
        except Exception as error:
            self.error = error
            if (accesses := self.stream.device.accesses) is not None:
                accesses.failed.add(self.slice_id)
        self.args = ()  # a chain of lazy steps would hold on to its whole past


def value_of(arg: Any) -> Any:
    """What an op is given for an argument: for another op its value, or the error that it had."""
    if isinstance(arg, OrNone):
        return arg.value
    if not isinstance(arg, SimOp):
        return arg
    if arg.error is not None:
        raise arg.error
    return arg.value


class SimSignal:
    """Something that is said at a moment (``devices/base.py:Signal``)."""

    def __init__(self, device: SimDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.slice_id = device.recorder.new_id()
        self.done = False
        self.when_done: list[Callable[[], None]] = []

    def set(self) -> None:
        """Say it; whatever waited goes on at this moment."""
        if not self.done:
            self.device.recorder.program.say(self.slice_id)
            self.done = True
            for callback in self.when_done:
                callback()

    def query(self) -> bool:
        """Whether it was said by now."""
        if self.done:
            self.device.recorder.program.wait(self.slice_id)
        return self.done

    def synchronize(self) -> None:
        """Let virtual time pass until it is said."""
        self.device.run_until_done(self)
        self.device.recorder.program.wait(self.slice_id)


# -- Host and device at once on a machine that they share: each takes something from the other -----

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


# -- Streams of the simulated device: ops that take virtual time, one after the other --------------

START = FINISH + 1  # at one instant, ops finish before others start


class SimStream:
    """A queue of ops and waits, worked off one at a time."""

    side: Side = "device"

    def __init__(self, device: SimDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.queue: deque[tuple[str, SimOp | SimSignal]] = deque()
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
        op = SimOp(self, fn, args)
        op.name, op.cost, op.label = name, cost, label
        op.slice_id = self.device.recorder.new_id()
        self._record_launch(op, touches)
        self.queue.append(("run", op))
        self.advance()
        return op

    def wait(self, op: SimOp | SimSignal) -> None:
        """Hold back what follows until ``op`` has ended."""
        self._record_wait(op, is_over=False)
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
            if action == "wait":
                self._record_wait(op, is_over=True)
            if isinstance(op, SimOp) and action == "run":
                self.is_busy = True
                ready = self.device.time + self.device.pace.start.get(op.name, 0)
                self.device.at(ready, START, partial(self._start, op))

    def _record_launch(self, op: SimOp, touches: Sequence[Touch]) -> None:
        """What the op will do is known now: streams run in order."""
        self.device.recorder.program.launch(self.name, op.slice_id, op.args, touches)

    def _record_wait(self, op: SimOp | SimSignal, is_over: bool) -> None:
        """Where in the stream's order the wait is, is known when it is queued."""
        if not is_over:
            self.device.recorder.program.wait(op.slice_id, self.name)

    def _start(self, op: SimOp) -> None:
        op.start = self.device.time
        self.device.running, outer = op, self.device.running
        op.run()
        self.device.running = outer
        self.device.finish_after(op.cost, self.side, partial(self._finish, op))

    def _finish(self, op: SimOp) -> None:
        for memory, writes in op.writes.items():
            memory.apply(writes, op.slice_id)
        op.done, self.is_busy = True, False
        self.device.record(self.name, op.name, op.start, op.label, op.slice_id)
        for callback in op.when_done:
            callback()
        self.advance()


class SimThread(SimStream):
    """A further thread of the host: what a call does becomes true at its end, as on the host."""

    side: Side = "host"

    def _start(self, op: SimOp) -> None:
        op.start = self.device.time
        self.device.finish_after(op.cost, self.side, partial(self._finish, op))

    def _finish(self, op: SimOp) -> None:
        with self.device.recorder.program.inside(self.name, op.slice_id):
            op.run()
        super()._finish(op)

    def _record_launch(self, op: SimOp, touches: Sequence[Touch]) -> None:
        """Only that it was queued: what the call does, it says itself."""
        self.device.recorder.program.call(op.slice_id)

    def _record_wait(self, op: SimOp | SimSignal, is_over: bool) -> None:
        """When it is over: what the thread did before has been recorded by then."""
        if is_over:
            self.device.recorder.program.wait(op.slice_id, self.name)


# -- A phase of the host on the simulated device: its time goes by when it is entered --------------


class HostPhase(AbstractContextManager[int]):
    """``SimDevice.host``; gives the slice's id.

    A step has five of them, so it is no generator: that would take a simulation a tenth longer.
    """

    __slots__ = ("cost", "device", "label", "phase")

    def __init__(self, device: SimDevice, phase: str, cost: int, label: Label) -> None:
        self.device, self.phase, self.cost, self.label = device, phase, cost, label

    def __enter__(self) -> int:
        """Spend the cost: everything that ends meanwhile takes effect; then the body runs."""
        device, recorder = self.device, self.device.recorder
        start, slice_id = device.time, recorder.new_id()
        device.work(self.cost)
        device.record("host", self.phase, start, self.label, slice_id)
        recorder.program.enter("host", slice_id)
        return slice_id

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Spend what a machine takes behind such a phase, unless its body has failed."""
        if kind is None and (behind := self.device.pace.after.get(self.phase, 0)):
            self.device.work(behind)


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
