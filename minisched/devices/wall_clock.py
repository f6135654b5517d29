"""The host's side of every device that runs in real time: its clock and its phases."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from queue import Empty, SimpleQueue
from time import perf_counter_ns
from typing import Any, NamedTuple, Protocol

from ..trace import Program, Recorder, Slice, Touch
from .base import NO_LABEL, Label, Op, OrNone, without_frames

# -- How exactly a thread wakes: Linux lets timed waits last up to 0.05 ms longer, to save power
#
# Whoever wants the interpreter waits for it in such steps (``sys.setswitchinterval``), so that a
# stream's thread got it from a busy host after 0.07 ms where 0.02 were asked for, two dozen times
# in a decode step.

SET_TIMERSLACK = 29  # of prctl
LEAST = 1  # nanosecond; 0 stands for what is usual


def wake_on_time() -> None:
    """Let the thread that calls wake as exactly as Linux can; elsewhere nothing happens."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(SET_TIMERSLACK, ctypes.c_ulong(LEAST), *(ctypes.c_ulong(0) for _ in range(3)))


# -- How long a busy thread may keep the interpreter: the least that any open device wants ---------

_wanted: list[float] = []  # seconds: what Python had before, then each open device's


def want(seconds: float) -> None:
    """Let threads switch at least that often until it is given back."""
    if not _wanted:
        _wanted.append(sys.getswitchinterval())
    _wanted.append(seconds)
    sys.setswitchinterval(min(_wanted))


def give_back(seconds: float) -> None:
    """A device that wanted this is closed; after the last one it is as before."""
    _wanted.remove(seconds)
    sys.setswitchinterval(min(_wanted))
    if len(_wanted) == 1:
        _wanted.clear()


# -- Pure-Python work of a chosen length, to make a wall-clock host as busy as a real scheduler ----

ROUNDS = 20_000  # a millisecond or so: short enough to find a run that nobody disturbed
Way = Callable[[int], object]  # spends so many nanoseconds of work


def work(rounds: int) -> int:
    """Arithmetic that holds the interpreter lock for as long as ``rounds`` take."""
    x = 1
    for _ in range(rounds):
        x = (x * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
    return x


@cache
def nanoseconds_per_round() -> float:
    """The shortest of 20 timings, measured once in a process while nothing else should run."""
    times = []
    for _ in range(20):
        start = perf_counter_ns()
        work(ROUNDS)
        times.append(perf_counter_ns() - start)
    return min(times) / ROUNDS


def rounds_of(cost: int) -> int:
    """How many rounds take ``cost`` nanoseconds when a thread runs alone."""
    return round(cost / nanoseconds_per_round())


def compute(cost: int) -> None:
    """The work itself, in this thread."""
    work(rounds_of(cost))


_ways: list[Way] = [compute]


def spend(cost: int) -> None:
    """Do the amount of work that takes ``cost`` nanoseconds when this thread runs alone.

    It is a fixed amount of work, not a deadline: while another thread holds the interpreter lock
    or the core, no time passes for it. Only so does a measurement show what is really hidden.
    """
    if cost:
        _ways[-1](cost)


@contextmanager
def done_by(way: Way) -> Iterator[None]:
    """Let ``way`` do the work meanwhile: a bench asks what it costs elsewhere."""
    _ways.append(way)
    try:
        yield
    finally:
        _ways.remove(way)


# -- What threads hand each other: a call with its value, and a signal -----------------------------


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


# -- A thread of the host with a queue, first in, first out ----------------------------------------


class Held(NamedTuple):
    """In a queue: what follows is held back until this has ended."""

    until: Op


class Owner(Protocol):
    """What a thread needs from its device."""

    recorder: Recorder
    is_closed: bool

    def now(self) -> int:
        """Nanoseconds since the device was opened."""
        ...

    def record(
        self, lane: str, name: str, start: int, end: int, label: Label, slice_id: int
    ) -> None:
        """Record a slice."""
        ...


class HostThread:
    """A thread and its queue; its lane in the trace has its name.

    ``inside`` is entered once, on the thread, for as long as it lives. Should the thread die,
    whatever is in its queue, or is put there later, has that for its error; ``on_death`` is called
    for those who wait for something that it was to say.
    """

    def __init__(
        self,
        device: Owner,
        name: str,
        inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        self.device = device
        self.name = name
        self.inside = inside
        self.on_death = on_death
        self.died_of: BaseException | None = None
        self.queue: SimpleQueue[ThreadOp | Held | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"stream {name}", daemon=True)
        self.thread.start()

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> ThreadOp:
        """Queue a call; ``cost`` nanoseconds of pure-Python work come before it.

        Raises:
            RuntimeError: the device is closed.
        """
        if self.device.is_closed:
            raise RuntimeError(f"{name} can't be launched: the device is closed")
        recorder = self.device.recorder
        op = ThreadOp(fn, args, name, cost, recorder.program)
        op.label, op.slice_id = label, recorder.new_id()
        self._record_launch(op, touches)
        self.queue.put(op)
        if self.died_of is not None:
            self._drop_the_rest()
        return op

    def wait(self, op: Op) -> None:
        """Hold back what follows until ``op`` has ended, or was said."""
        self.queue.put(Held(op))

    def _record_launch(self, op: ThreadOp, touches: Sequence[Touch]) -> None:
        """Only that it was queued: what the call does, it says itself."""
        self.device.recorder.program.call(op.slice_id)

    def _run_recorded(self, op: ThreadOp) -> None:
        """Run a call, which is this lane's from its begin to its end."""
        with self.device.recorder.program.inside(self.name, op.slice_id):
            op.run()

    def close(self) -> None:
        """End the thread; what is still queued is dropped, and its error says so."""
        self.queue.put(None)
        self.thread.join()

    def _enter(self) -> None:
        """What this thread does from now on is its lane's."""
        self.device.recorder.program.enter(self.name)

    def _work(self) -> None:
        """The thread: work the queue off until None comes."""
        try:
            self._enter()
            with self.inside():
                while (item := self.queue.get()) is not None:
                    if isinstance(item, Held):
                        with suppress(Exception):  # whoever takes its value hears of it
                            item.until.synchronize()
                    else:
                        self._run(item)
        except BaseException as error:  # not an op's: these are kept with the op
            self.died_of = error
            self._drop_the_rest()

    def _drop_the_rest(self) -> None:
        """The thread is dead: nobody may wait for what it has not done."""
        error = RuntimeError(f"the thread {self.name!r} has died: {self.died_of}")
        with suppress(Empty):
            while True:
                item = self.queue.get_nowait()
                if isinstance(item, ThreadOp):
                    item.drop(error)
        self.on_death()

    def _run(self, op: ThreadOp) -> None:
        device, start = self.device, self.device.now()
        if device.is_closed:
            op.drop(RuntimeError(f"{op.name} was dropped: the device was closed"))
            return
        try:
            self._run_recorded(op)
            device.record(self.name, op.name, start, device.now(), op.label, op.slice_id)
        except BaseException as error:
            op.drop(error)
            raise
        op.done.set()


class WallClock:
    """What ``thread``, ``cuda`` and ``mlx`` have in common; they add streams and memory."""

    clock = "wall"
    built_by_host = False
    lifetimes: Sequence[str] = ()

    def __init__(self, recorder: Recorder | None = None) -> None:
        nanoseconds_per_round()  # measured now, while nothing runs
        self.recorder = recorder or Recorder()
        self.recorder.now = self.now
        self.opened = time.perf_counter_ns()
        self.is_closed = False
        self._threads: dict[str, HostThread] = {}
        self._signals: list[Signal] = []

    def now(self) -> int:
        """Nanoseconds since the device was opened."""
        return time.perf_counter_ns() - self.opened

    @contextmanager
    def host(self, phase: str, cost: int = 0, label: Label = NO_LABEL) -> Iterator[int]:
        """Record the body as a slice; ``cost`` nanoseconds of pure-Python work come first."""
        start, slice_id = self.now(), self.recorder.new_id()
        self.recorder.program.enter("host", slice_id)
        try:
            spend(cost)
            yield slice_id
        finally:
            self.record("host", phase, start, self.now(), label, slice_id)

    def idle_until(self, time_ns: int) -> None:
        """Sleep until ``time_ns``."""
        time.sleep(max(0, time_ns - self.now()) / 1e9)

    def count_memory(self) -> None:
        """Nothing, unless the device's library says what it keeps."""

    def thread(self, name: str) -> HostThread:
        """The host's thread of that name; it starts with its first use."""
        if name not in self._threads:
            self._threads[name] = HostThread(self, name, self.on_thread, self._release)
        return self._threads[name]

    def on_thread(self) -> AbstractContextManager[Any]:
        """What a thread of the host is inside of for as long as it lives; nothing."""
        return nullcontext()

    def signal(self, name: str) -> Signal:
        """A new signal; once it is said, it stays said.

        Those that are said need no release any more. Nobody hears of them here: ``query`` would
        record that this thread comes after whoever said them.
        """
        self._signals = [signal for signal in self._signals if not signal.done.is_set()]
        self._signals.append(Signal(name, self.recorder.program))
        return self._signals[-1]

    def close_threads(self) -> None:
        """End the host's threads: what waits for a signal waits no longer, what is queued drops."""
        self.is_closed = True
        self._release()
        for thread in self._threads.values():
            thread.close()

    def _release(self) -> None:
        """Who was to say what others wait for may be gone: nobody waits for any signal longer."""
        for signal in list(self._signals):
            signal.set()

    def record(
        self, lane: str, name: str, start: int, end: int, label: Label, slice_id: int
    ) -> None:
        """Record a slice."""
        self.recorder.slice(
            Slice(slice_id, lane, name, start, end, label.step, label.mode, label.rids)
        )
