"""Streams as threads: what is launched runs on the CPU, in order, beside the host's own thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ..trace import Recorder, Touch
from . import switch_interval, torch_team
from .base import NO_LABEL, Label, Op
from .host_thread import HostThread
from .thread_op import ThreadOp
from .timer_slack import wake_on_time
from .torch_device import TorchDevice

SWITCH_INTERVAL = 0.00002  # seconds a busy host may keep a stream's thread from the interpreter


@contextmanager
def working(torch_threads: int) -> Iterator[None]:
    """Inside, a stream's thread wakes on time and computes with its own number of threads."""
    wake_on_time()
    with torch_team.team(torch_threads):
        yield


class ThreadStream(HostThread):
    """A stream whose ops run on a thread; an op takes as long as it takes, whatever it "costs"."""

    def __init__(self, device: ThreadDevice, name: str) -> None:
        super().__init__(device, name, partial(working, device.torch_threads))

    def launch(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str,
        cost: int = 0,
        label: Label = NO_LABEL,
        touches: Sequence[Touch] = (),
    ) -> ThreadOp:
        """Queue an op.

        Raises:
            RuntimeError: the device is closed.
        """
        return super().launch(fn, *args, name=name, label=label, touches=touches)

    def wait(self, op: Op) -> None:
        """Hold back what follows until ``op`` has ended."""
        self.device.recorder.program.wait(op.slice_id, self.name)
        super().wait(op)

    def _record_launch(self, op: ThreadOp, touches: Sequence[Touch]) -> None:
        """What the op will do is known now: streams run in order."""
        self.device.recorder.program.launch(self.name, op.slice_id, op.args, touches)

    def _run_recorded(self, op: ThreadOp) -> None:
        """Run an op; what it does was recorded when it was launched."""
        op.run()

    def _enter(self) -> None:
        """This thread's acts were recorded by who launched them."""
        self.device.recorder.program.enter("")


class ThreadDevice(TorchDevice):
    """One worker thread for each stream, torch on the CPU (``devices/base.py:Device``).

    Python runs one thread at a time, so two settings give both sides a chance; devices that are
    open at the same time share them, and the last ``close`` takes them back. Threads switch after
    0.02 ms instead of 5: each of the two dozen tensor operations around a model's own asks a busy
    host for the interpreter anew. A stream computes with ``torch_threads`` threads (by default one
    less than torch would take), which leaves a core to the host; the host's own operations are
    small and take one.
    """

    name = "thread"

    def __init__(self, recorder: Recorder | None = None, torch_threads: int | None = None) -> None:
        super().__init__(recorder, torch.device("cpu"))
        self._streams: dict[str, ThreadStream] = {}
        switch_interval.want(SWITCH_INTERVAL)
        usual = torch_team.give_host_one()
        self.torch_threads = torch_threads or max(1, usual - 1)

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
        try:
            self.close_threads()
            for stream in self._streams.values():
                stream.close()
        finally:
            switch_interval.give_back(SWITCH_INTERVAL)
            torch_team.take_back()
