"""The buffers in which steps leave what the host shall read, and in which it reads that."""

from __future__ import annotations

from typing import NamedTuple

from ..devices.base import Buffer, Device
from ..trace import Touch
from .failure import memory_for


class Output(NamedTuple):
    """One pair of buffers, and what an op says that touches them."""

    number: int
    on_device: Buffer
    on_host: Buffer

    def left(self, start: int, end: int) -> Touch:
        """An op leaves the integers from ``start`` to ``end``."""
        return Touch("write", f"output {self.number}", range(start, end))

    def copied(self, size: int) -> list[Touch]:
        """The copy brings the first ``size`` integers to the host."""
        return [
            Touch("read", f"output {self.number}", range(size)),
            Touch("write", f"host output {self.number}", range(size)),
        ]


class OutputRing:
    """A ring of ``depth`` pairs of ``size`` integers each; a step uses the one of its number.

    With ``depth`` steps in flight none overwrites the output of another.
    """

    def __init__(self, device: Device, size: int, depth: int) -> None:
        self.buffers: list[tuple[Buffer, Buffer]] = []  # on the device, on the host
        with memory_for(f"the outputs of {depth} steps in flight", device.name):
            for i in range(depth):
                on_device = device.memory(f"output {i}", size)
                self.buffers.append((on_device, device.host_memory(f"host output {i}", size)))
        device.recorder.mark("host buffers", count=len(self), size=size)

    def __len__(self) -> int:
        return len(self.buffers)

    def of(self, step: int) -> Output:
        """Where a step leaves its output."""
        number = step % len(self)
        return Output(number, *self.buffers[number])
