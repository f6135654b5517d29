"""A thread of the host with a queue, first in, first out; and signals between threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from ..trace import Program, Recorder, Touch
from .base import NO_LABEL, Label, Op
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
            values = [arg.synchronize() if isinstance(arg, ThreadOp) else arg for arg in self.args]
            spend(self.cost)
            self.value = self.fn(*values)
        except BaseException as error:  # whatever it was, the host must hear of it
            self.error = error
        self.args = ()  # they may hold the step before, and that one the step before it


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

    ``inside`` is entered once, on the thread, for as long as it lives.
    """

    def __init__(
        self,
        device: Owner,
        name: str,
        inside: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.device = device
        self.name = name
        self.inside = inside
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
        self._enter()
        with self.inside():
            while (item := self.queue.get()) is not None:
                if isinstance(item, Held):
                    with suppress(Exception):  # whoever takes its value hears of it
                        item.until.synchronize()
                else:
                    self._run(item)

    def _run(self, op: ThreadOp) -> None:
        device, start = self.device, self.device.now()
        if device.is_closed:
            op.error = RuntimeError(f"{op.name} was dropped: the device was closed")
        else:
            self._run_recorded(op)
            device.record(self.name, op.name, start, device.now(), op.label, op.slice_id)
        op.done.set()
