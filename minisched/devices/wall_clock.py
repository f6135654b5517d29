"""The host of every device that runs in real time: its clock, its phases and its threads.

``thread``, ``cuda`` and ``mlx`` add streams and memory. A phase of the host takes its real time. A
run can add pure-Python work to it, so that the host is as busy as that of a real scheduler. If a
design has a second thread on the host, it is a real thread with a queue.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any

from ..trace import Recorder, Touch
from .base import NO_LABEL, Device, Event, Label, Op, Signal, value_of, without_frames


class WallClock(Device):
    """The base of ``thread``, ``cuda`` and ``mlx``, which add streams and memory."""

    clock = "wall"

    def __init__(self, recorder: Recorder | None = None) -> None:
        nanoseconds_per_round()  # measured now, while no op runs
        self.recorder = recorder or Recorder()
        self.recorder.now = self.now
        self.opened = perf_counter_ns()
        self.is_closed = False
        self._threads: dict[str, ThreadLane] = {}
        self._signals: list[ThreadSignal] = []

    def now(self) -> int:
        """Return the nanoseconds since the device was opened."""
        return perf_counter_ns() - self.opened

    @contextmanager
    def host(self, phase: str, cost: int = 0, label: Label = NO_LABEL) -> Iterator[int]:
        """Record the body as a slice; ``cost`` nanoseconds of pure-Python work come first."""
        with self.recorder.host(phase, **vars(label)) as slice_id:
            spend(cost)
            yield slice_id

    def idle_until(self, time_ns: int) -> None:
        """Sleep until ``time_ns``."""
        time.sleep(max(0, time_ns - self.now()) / 1e9)

    def thread(self, name: str) -> ThreadLane:
        """Return the host's thread of that name; it starts with its first use."""
        if name not in self._threads:
            self._threads[name] = ThreadLane(self, name, self.on_thread)
        return self._threads[name]

    def on_thread(self) -> AbstractContextManager[Any]:
        """Return the context of a thread of the host, for its whole life; here an empty one."""
        return nullcontext()

    def signal(self, name: str) -> ThreadSignal:
        """Return a new signal.

        Signals that are set need no release and are dropped. ``done`` is read directly, because
        ``query`` would record that this thread comes after the thread that set them.
        """
        self._signals = [signal for signal in self._signals if not signal.done.is_set()]
        self._signals.append(ThreadSignal(name, self.recorder))
        return self._signals[-1]

    def close_threads(self) -> None:
        """End the host's threads: set every signal, and drop queued calls."""
        self.is_closed = True
        for signal in self._signals:
            signal.set()
        for thread in self._threads.values():
            thread.close()


# -- Threads: their queues, and the events that they wait for --------------------------------------


class ThreadEvent(Event):
    """An event on one thread that other threads wait for."""

    done: threading.Event

    def _has_ended(self) -> bool:
        return self.done.is_set()

    def _wait(self) -> None:
        self.done.wait()


class ThreadSignal(ThreadEvent, Signal):
    """A signal that one thread sets and others wait for."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self.name, self.recorder, self.slice_id = name, recorder, recorder.new_id()
        self.done = threading.Event()

    def set(self) -> None:
        """Set it; further calls do nothing."""
        if not self.done.is_set():
            self.recorder.say(self.slice_id)
        self.done.set()


@dataclass(eq=False)
class ThreadOp(ThreadEvent, Op):
    """A launched op: an event, and after it a value or an error."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    cost: int
    slice_id: int
    recorder: Recorder
    name: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Compute the value on this thread; an argument's error is passed on."""
        try:
            values = [
                arg.synchronize() if isinstance(arg, ThreadOp) else value_of(arg)
                for arg in self.args
            ]
            spend(self.cost)
            self.value = self.fn(*values)
        except BaseException as error:  # of every kind, because the host must receive it
            self.error = without_frames(error)
        self.args = ()  # they may refer to the step before, and that one to all earlier ones


class ThreadLane:
    """A thread and its queue, first in, first out; its lane in the trace has its name.

    It is a thread of the host, or a stream of the device (``is_stream``). A stream runs in order,
    so its acts are recorded at the launch. An op on it takes its real time and ignores ``cost``.

    The thread enters ``inside`` once, for its whole life. No op ends the thread: an exception
    becomes the op's error.
    """

    def __init__(
        self,
        device: WallClock,
        name: str,
        inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
        is_stream: bool = False,
    ) -> None:
        self.device = device
        self.name = name
        self.inside = inside
        self.is_stream = is_stream
        self.queue: SimpleQueue[tuple[str, Any]] = SimpleQueue()  # run, wait or end; an op or event
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
        """Queue an op, or a call after ``cost`` nanoseconds of pure-Python work.

        Raises:
            RuntimeError: the device is closed.
        """
        if self.device.is_closed:
            raise RuntimeError(f"{name} can't be launched: the device is closed")
        recorder = self.device.recorder
        given = touches if self.is_stream else None  # a call records its own acts
        sources = (getattr(arg, "slice_id", 0) for arg in args)  # read only if it records
        slice_id = recorder.launch(name, lane=self.name, touches=given, uses=sources, **vars(label))
        op = ThreadOp(fn, args, 0 if self.is_stream else cost, slice_id, recorder, name)
        self.queue.put(("run", op))
        return op

    def wait(self, op: Event) -> None:
        """Start later ops only after ``op`` has ended or is set."""
        if self.is_stream:
            self.device.recorder.wait(op.slice_id, self.name)
        self.queue.put(("wait", op))

    def close(self) -> None:
        """End the thread and drop queued ops, each with an error."""
        self.queue.put(("end", None))
        self.thread.join()

    def _work(self) -> None:
        """Run the queue, on the thread, until an entry ends it."""
        self.device.recorder.enter("" if self.is_stream else self.name)
        with self.inside():
            while (item := self.queue.get())[0] != "end":
                if item[0] == "run":
                    self._run(item[1])
                else:
                    with suppress(Exception):  # raised again when its value is used
                        item[1].synchronize()

    def _run(self, op: ThreadOp) -> None:
        try:
            if self.device.is_closed:
                raise RuntimeError(f"{op.name} was dropped: the device was closed")
            with op.recorder.run(op.slice_id):
                op.run()
        except BaseException as error:
            op.error, op.args = error, ()
        op.done.set()


# -- The switch interval of threads: the shortest one of all open devices --------------------------

_wanted: list[float] = []  # seconds: Python's own, then one for each open device


def want(seconds: float) -> None:
    """Shorten the switch interval to that of a device, until ``give_back``."""
    if not _wanted:
        _wanted.append(sys.getswitchinterval())
    _wanted.append(seconds)
    sys.setswitchinterval(min(_wanted))


def give_back(seconds: float) -> None:
    """End a ``want``; the last one restores Python's own interval."""
    _wanted.remove(seconds)
    sys.setswitchinterval(min(_wanted))
    if len(_wanted) == 1:
        _wanted.clear()


# -- Pure-Python work of a chosen length, to make a wall-clock host as busy as a real scheduler ----

ROUNDS = 20_000  # about a millisecond: short enough that some timing is undisturbed
Way = Callable[[int], object]  # does work of that many nanoseconds


def work(rounds: int) -> int:
    """Hold the interpreter lock with ``rounds`` of arithmetic."""
    x = 1
    for _ in range(rounds):
        x = (x * 1_103_515_245 + 12_345) & 0x7FFF_FFFF
    return x


@cache
def nanoseconds_per_round() -> float:
    """Return the shortest of 20 timings, taken once in a process, before any op runs."""
    times = []
    for _ in range(20):
        start = perf_counter_ns()
        work(ROUNDS)
        times.append(perf_counter_ns() - start)
    return min(times) / ROUNDS


def compute(cost: int) -> None:
    """Do the rounds that take ``cost`` nanoseconds when this thread runs alone."""
    work(round(cost / nanoseconds_per_round()))


_ways: list[Way] = [compute]


def spend(cost: int) -> None:
    """Do the amount of work that takes ``cost`` nanoseconds when this thread runs alone.

    The amount of work is fixed, and no deadline ends it: it does not advance while another thread
    has the interpreter lock or the core. So a measurement shows only time that is really hidden.
    """
    if cost:
        _ways[-1](cost)


@contextmanager
def done_by(way: Way) -> Iterator[None]:
    """Replace the way of doing the work meanwhile, for a benchmark of another one."""
    _ways.append(way)
    try:
        yield
    finally:
        _ways.remove(way)
