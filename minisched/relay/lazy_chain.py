"""The lazy chain: the next step is built on the previous step's unevaluated tokens."""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Array, Device


class LazyChain:
    """No buffer: the previous step's output array is this step's input array.

    SGLang ``hardware_backend/mlx``, ``decode_batch_start_chained``. An unknown id is minus (1 +
    its row's place in the previous batch).
    """

    run_ahead = True

    def __init__(self, device: Device, max_running_requests: int = 0) -> None:
        self.xp = device.xp

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """Unknown ids become places in the previous batch; nothing has to be stored."""
        place = {rid: at for at, rid in enumerate(previous.rids)} if previous else {}
        ids = [
            -1 - place[row.req.rid] if token is None else token
            for row in batch.rows
            for token in row.ids
        ]
        return ids, []

    def resolve(self, ids: Array, previous: Array | None) -> Array:
        """The previous step's tokens, in this batch's order."""
        if previous is None:
            return ids
        return self.xp.where(ids < 0, previous[self.xp.clamp(-ids - 1, min=0)], ids)

    def store(self, dests: Array, tokens: Array) -> None:
        """Nothing: whoever builds on these tokens holds them."""
