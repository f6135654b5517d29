"""A simulated device that counts: what is shipped, who waits for what, and what stays alive."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..devices.base import Event
from ..devices.sim import SimDevice, SimEvent, SimMemory, SimOp, SimStream, Vector, VectorArrays
from ..worker import Step

INTEGER = 8  # bytes of a token id, a KV slot or a position, which are 64-bit integers on torch


class Alive:
    """Bytes that somebody still names: how many now, and how many at most."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def watch(self, thing: Any, size: int) -> None:
        """Count ``size`` bytes until ``thing`` is gone."""
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(thing, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


class CountingArrays(VectorArrays):
    """Counts each array that is made of the host's integers: a transfer to the device."""

    def __init__(self) -> None:
        self.transfers: Counter[str] = Counter()  # by the thread that ships
        self.bytes_shipped = 0
        self.shipper = "host"
        self.inputs = Alive()

    def asarray(self, values: Sequence[int]) -> Vector:
        """A vector of ``values``; an empty one needs no transfer."""
        vector, size = super().asarray(values), INTEGER * len(values)
        if values:
            self.transfers[self.shipper] += 1
            self.bytes_shipped += size
            self.inputs.watch(vector, size)
        return vector


class CountingThread(SimStream):
    """Counts the waits in its queue, and the flat batches that are given to it or held after."""

    def __init__(self, device: CountingSim, name: str) -> None:
        super().__init__(device, name, is_thread=True)
        self.counting = device

    def wait(self, op: Event) -> None:
        """Hold back what follows."""
        self.counting.thread_waits[kind_of(op)] += 1
        super().wait(op)

    def _start(self, op: SimOp) -> None:
        for arg in op.args:
            if isinstance(arg, Step):
                flat = arg.flat
                lists = (value for value in vars(flat).values() if isinstance(value, list))
                self.counting.queued.watch(flat, INTEGER * sum(map(len, lists)))
        super()._start(op)

    def _finish(self, op: SimOp) -> None:
        self.counting.xp.shipper = self.name
        super()._finish(op)
        self.counting.xp.shipper = "host"


class CountingSim(SimDevice):
    """``SimDevice`` with counters; it runs exactly as that one does."""

    xp: CountingArrays

    def __init__(self) -> None:
        super().__init__()
        self.xp = CountingArrays()
        self.host_waits: Counter[str] = Counter()  # how often the host was blocked, by what for
        self.thread_waits: Counter[str] = Counter()  # waits in a thread's queue, by what for
        self.copies = 0
        self.bytes_copied = 0
        self.memories: dict[str, int] = {}  # bytes of each buffer on the device
        self.queued = Alive()  # flat batches on the host

    def thread(self, name: str) -> SimStream:
        """The thread of that name."""
        return self._lanes.setdefault(name, CountingThread(self, name))

    def memory(self, name: str, size: int) -> SimMemory:
        """Device memory, counted."""
        self.memories[name] = INTEGER * size
        return super().memory(name, size)

    def copy_to_host(self, dst: SimMemory, src: SimMemory, size: int) -> Vector:
        """A transfer to the host."""
        self.copies += 1
        self.bytes_copied += INTEGER * size
        return super().copy_to_host(dst, src, size)

    def run_until_done(self, op: SimEvent) -> None:
        """Let time pass; if there was something to wait for, it was a sync point."""
        if not op.done:
            self.host_waits[kind_of(op)] += 1
        super().run_until_done(op)


def kind_of(op: Event) -> str:
    """What is waited for, without the step's number."""
    return op.name.rstrip("0123456789 ")
