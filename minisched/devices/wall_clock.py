"""The host's side of every device that runs in real time: its clock and its phases."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..trace import Recorder, Slice
from .base import NO_LABEL, Label
from .host_thread import HostThread
from .host_work import nanoseconds_per_round, spend
from .thread_op import Signal


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
