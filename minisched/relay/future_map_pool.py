"""The pool-indexed FutureMap: each row of the request table has a future slot of its own."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ScheduleBatch
from ..devices.base import Device
from .base import Bound, RelayShape
from .future_map import FutureMap


class FutureMapPool(FutureMap):
    """The form that replaced the ring (SGLang ``overlap_utils.py`` since #25862).

    A request's future slot is its row of the request table (``req_pool_idx``); row 0 is padding. So
    no slot is allocated, and no slot is reused too early. SGLang's ``stash`` (here
    ``store_to_map``) runs on the forward stream, after the sampling. SGLang's
    ``resolve_forward_inputs`` reads the slot of every row that decodes. Here a token that the host
    knows is sent as itself.
    """

    name = "pool"
    needs = "a loop that runs ahead"

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.num_rows = shape.max_running_requests + 1
        size = self.num_rows * (1 + shape.num_draft_tokens)  # drafts: ``future_map_drafts.py``
        self.token_ids_map = device.memory("future map", size)

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace each unknown id by minus its row; the row is also the slot of the next token."""
        rows = [lease.row for lease in batch.leases]
        ids = [
            -row if token is None else token
            for row, tokens in zip(rows, batch.ids, strict=True)
            for token in tokens
        ]
        self.record(batch, ids, rows)
        return ids, rows

    def of_row(self, row: int, length: int) -> list[tuple[str, Sequence[int]]]:
        """Return the future slot of the row."""
        return [("future map", [row])]
