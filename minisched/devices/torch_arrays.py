"""The array functions that relays need, for torch; and how numbers get to a torch device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

Numbers = Sequence[float] | Sequence[Sequence[float]]


def ship(values: Numbers, where: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers from the host, or rows of them, as a tensor on the device.

    To a GPU they go from pinned memory, so that the host need not wait for what the GPU does. That
    memory is torch's, who hands it out again when the copy is over and not before.
    """
    pinned = where.type == "cuda"
    on_host = torch.tensor(values, dtype=dtype, pin_memory=pinned)
    return on_host.to(where, non_blocking=pinned)


class TorchArrays:
    """``devices/base.py:Arrays`` with int64 tensors on one torch device."""

    def __init__(self, where: torch.device) -> None:
        self.device = where

    def asarray(self, values: Sequence[int]) -> Tensor:
        """Integers on the device."""
        return ship(values, self.device)

    def asarrays(self, *columns: Sequence[int]) -> Sequence[Tensor]:
        """Views of one tensor: to a GPU all go in one copy, from one pinned buffer."""
        packed = self.asarray([*chain.from_iterable(columns)])
        views: Sequence[Tensor] = packed.split([len(values) for values in columns])
        return views

    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """``a`` where the condition holds, else ``b``."""
        return torch.where(condition, a, b)

    def mask(self, values: Sequence[bool]) -> Tensor:
        """Booleans on the device."""
        return ship(values, self.device, torch.bool)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Sums, element by element."""
        return a + b

    def count_equal(self, a: Tensor, b: Tensor, width: int, num_rows: int) -> Tensor:
        """1 and the equal elements that each row of [num_rows * width] begins with, [num_rows]."""
        return 1 + (a == b).view(num_rows, width).long().cumprod(-1).sum(-1)

    def rows_at(self, matrix: Tensor, at: Tensor) -> Tensor:
        """Some rows of logits, in the order of ``at``."""
        return matrix[at]

    def clamp(self, values: Tensor, min: int) -> Tensor:
        """Values below ``min`` raised to it."""
        return torch.clamp(values, min=min)
