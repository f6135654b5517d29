"""Streams as threads: what is launched runs on the CPU, in order, beside the host's own thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Literal

import torch

from ..trace import Recorder
from .base import NO_LABEL, Label
from .torch_device import TorchDevice

SWITCH_INTERVAL = 0.0001  # seconds a busy host may keep a stream's thread from the interpreter


class ThreadOp:
    """A launched op: an event, and after it a value or an error."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], name: str) -> None:
        self.fn = fn
        self.args = args
        self.name = name
        self.slice_id = 0
        self.label = NO_LABEL
        self.value: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()

    def query(self) -> bool:
        """Whether it has ended."""
        return self.done.is_set()

    def synchronize(self) -> Any:
        """Block this thread until it has ended; return its value or raise its error."""
        self.done.wait()
        if self.error is not None:
            raise self.error
        return self.value

    def run(self) -> None:
        """Compute the value on this thread; an argument's error is passed on."""
        try:
            values = [arg.synchronize() if isinstance(arg, ThreadOp) else arg for arg in self.args]
            self.value = self.fn(*values)
        except BaseException as error:  # whatever it was, the host must hear of it
            self.error = error
        self.args = ()  # they may hold the step before, and that one the step before it


class ThreadStream:
    """A thread and its queue, first in, first out."""

    def __init__(self, device: ThreadDevice, name: str) -> None:
        self.device = device
        self.name = name
        self.queue: SimpleQueue[tuple[Literal["run", "wait"], ThreadOp] | None] = SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=f"stream {name}", daemon=True)
        self.thread.start()

    def launch(
        self, fn: Callable[..., Any], *args: Any, name: str, cost: int = 0, label: Label = NO_LABEL
    ) -> ThreadOp:
        """Queue an op; it takes as long as it takes, whatever ``cost`` says.

        Raises:
            RuntimeError: the device is closed.
        """
        if self.device.is_closed:
            raise RuntimeError(f"{name} can't be launched: the device is closed")
        op = ThreadOp(fn, args, name)
        op.label, op.slice_id = label, self.device.recorder.new_id()
        self.queue.put(("run", op))
        return op

    def wait(self, op: ThreadOp) -> None:
        """Hold back what follows until ``op`` has ended."""
        self.queue.put(("wait", op))

    def _work(self) -> None:
        """The thread: work the queue off until None comes."""
        with torch.inference_mode():
            while (item := self.queue.get()) is not None:
                action, op = item
                if action == "wait":
                    op.done.wait()
                else:
                    self._run(op)

    def _run(self, op: ThreadOp) -> None:
        device, start = self.device, self.device.now()
        if device.is_closed:
            op.error = RuntimeError(f"{op.name} was dropped: the device was closed")
        else:
            op.run()
            device.record(self.name, op.name, start, device.now(), op.label, op.slice_id)
        op.done.set()


class ThreadDevice(TorchDevice):
    """One worker thread for each stream, torch on the CPU (``devices/base.py:Device``).

    Python runs one thread at a time, so two settings, taken back by ``close``, give both sides a
    chance: threads switch after 0.1 ms instead of 5, and torch takes ``torch_threads`` threads (by
    default one less than it would), which leaves a core to the host. With one more, libgomp finds
    more threads than cores and lets its own sleep between operations: a step takes twice as long.
    """

    name = "thread"

    def __init__(self, recorder: Recorder | None = None, torch_threads: int | None = None) -> None:
        super().__init__(recorder, torch.device("cpu"))
        self.is_closed = False
        self._streams: dict[str, ThreadStream] = {}
        self._before = sys.getswitchinterval(), torch.get_num_threads()
        sys.setswitchinterval(SWITCH_INTERVAL)
        torch.set_num_threads(torch_threads or max(1, self._before[1] - 1))

    def stream(self, name: str) -> ThreadStream:
        """The stream of that name; its thread starts with it."""
        if name not in self._streams:
            self._streams[name] = ThreadStream(self, name)
        return self._streams[name]

    def clear_cache(self) -> None:
        """Nothing is cached; the moment is marked."""
        self.recorder.mark("clear cache")

    def close(self) -> None:
        """Let running ops end, drop what is queued (its error says so), and end all threads."""
        if self.is_closed:
            return
        self.is_closed = True
        try:
            for stream in self._streams.values():
                stream.queue.put(None)
            for stream in self._streams.values():
                stream.thread.join()
        finally:
            sys.setswitchinterval(self._before[0])
            torch.set_num_threads(self._before[1])
