"""A thread of the host with a queue, first in, first out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from ..trace import Recorder, Touch
from .base import NO_LABEL, Label, Op
from .thread_op import ThreadOp


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
