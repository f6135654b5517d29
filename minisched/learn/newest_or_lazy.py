"""A lazy chain that does not complain where a step is not told what it is built on."""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Device
from ..export.mlx_memory import NewestKnown
from ..relay import LazyChain


class NewestOrLazy(LazyChain):
    """Without a previous step, an unknown token is the newest that the host has.

    That is what SGLang's ``decode_batch_start`` for MLX does, which is for fresh steps; an excerpt
    of #22416 calls it for chained ones (``export/mlx_memory.py``). ``untold`` are the steps to
    which that happened.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.untold: set[int] = set()

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """Places in the previous step's tokens; without one, the newest known tokens."""
        if previous is not None or not any(None in row.ids for row in batch.rows):
            return super().bind(batch, previous)
        self.untold.add(batch.step)
        return NewestKnown().bind(batch, None)
