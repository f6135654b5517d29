"""A phase of the host on the simulated device: its time goes by when it is entered."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .base import Label

if TYPE_CHECKING:
    from .sim import SimDevice


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
