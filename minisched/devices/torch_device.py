"""What ``thread`` and ``cuda`` have in common: memory in tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ..trace import Recorder
from .base import WRONG_TOKEN, Op
from .torch_arrays import TorchArrays
from .wall_clock import WallClock


class TorchDevice(WallClock):
    """A wall-clock device whose memory is int64 tensors on ``where``; subclasses add streams."""

    def __init__(self, recorder: Recorder | None, where: torch.device) -> None:
        super().__init__(recorder)
        self.xp = TorchArrays(where)

    def memory(self, name: str, size: int) -> Tensor:
        """``size`` integers on the device, a valid but wrong token each."""
        return torch.full((size,), WRONG_TOKEN, dtype=torch.int64, device=self.xp.device)

    def host_memory(self, name: str, size: int) -> Tensor:
        """``size`` integers on the host, pinned where the device is a GPU."""
        pinned = self.xp.device.type == "cuda"
        return torch.full((size,), WRONG_TOKEN, dtype=torch.int64, pin_memory=pinned)

    def copy_to_host(self, dst: Tensor, src: Tensor, size: int) -> Tensor:
        """On a stream: copy the first ``size`` integers into ``dst``, and give that part of it."""
        return dst[:size].copy_(src[:size], non_blocking=True)

    def bring_to_host(self, values: Tensor) -> Tensor:
        """On a stream: copy a tensor into new memory on the host; from a GPU without waiting."""
        pinned = self.xp.device.type == "cuda"
        target = torch.empty(values.shape, dtype=values.dtype, pin_memory=pinned)
        return target.copy_(values, non_blocking=True)

    def flush(self, *ops: Op) -> None:
        """Nothing to do: launching is enough."""
