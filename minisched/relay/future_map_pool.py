"""The pool-indexed FutureMap: a future slot for each row, with drafts also these and a length."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress

from ..core import ScheduleBatch
from ..devices.base import Array, Device
from ..scheduler.verify import VerifyBatch
from ..trace import Touch
from .base import Bound, RelayShape
from .future_map import FutureMap


class FutureMapPool(FutureMap):
    """The pool-indexed form that replaced the ring (SGLang ``overlap_utils.py`` since #25862).

    A request's future slot is its row in the request table (``req_pool_idx``), row 0 being padding:
    nothing to allocate, nothing to lap. Its ``stash`` (here ``store_to_map``) runs on the forward
    stream, behind the sampling. Its ``resolve_forward_inputs`` gathers every row of a decode; here
    a token that the host knows is sent as itself.

    With speculation (``num_draft_tokens``) the host does not know how many tokens a step accepts,
    so lengths lie on the device too, by row (``new_seq_lens_buf``), and the drafts for the next
    step behind the tokens, ``num_draft_tokens`` cells a row.
    """

    name = "pool"
    needs = "a loop that runs ahead"

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.num_rows = shape.max_running_requests + 1
        self.num_draft_tokens = shape.num_draft_tokens
        size = self.num_rows * (1 + self.num_draft_tokens)
        self.kept_in = self.output_tokens_buf = device.memory("future map", size)
        if self.num_draft_tokens:
            self.new_seq_lens_buf = device.memory("new seq lens", self.num_rows)

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Unknown ids become minus their row; the destination is the row.

        The trace is told of tokens alone: drafts are no future slots of a step's own.
        """
        rows = [lease.row for lease in batch.leases]
        ids = [
            -self.cell(row, at) if token is None else token
            for row, tokens in zip(rows, batch.ids, strict=True)
            for at, token in enumerate(tokens)
        ]
        self.record(batch, [token for token in ids if -token < self.num_rows], rows)
        return ids, rows

    # -- drafts and lengths, by row

    def cell(self, row: int, draft: int) -> int:
        """Where a row's newest token is (``draft`` 0), or one of its drafts (from 1 on)."""
        return row if not draft else self.num_rows + row * self.num_draft_tokens + draft - 1

    def draft_cells(self, rows: Sequence[int]) -> list[int]:
        """Where the rows' drafts are, [num_reqs * num_draft_tokens]."""
        return [self.cell(row, at) for row in rows for at in range(1, self.num_draft_tokens + 1)]

    def start_of(self, rows: Sequence[int]) -> Array:
        """Device: the position of each row's newest token, [num_reqs]."""
        return self.new_seq_lens_buf[self.xp.asarray(rows)] - 1

    def stash_lens(self, rows: Sequence[int], seq_lens: Array) -> None:
        """Device: write how many tokens each row has now, [num_reqs]."""
        self.new_seq_lens_buf[self.xp.asarray(rows)] = seq_lens

    def stash_drafts(self, rows: Sequence[int], drafts: Array) -> None:
        """Device: write the drafts of each row's next step, [num_reqs * num_draft_tokens]."""
        self.output_tokens_buf[self.xp.asarray(self.draft_cells(rows))] = drafts

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """The rows that the placeholders name, and the lengths of those whose start is unknown."""
        unknown = batch.start_unknown if isinstance(batch, VerifyBatch) else ()
        hidden = compress((lease.row for lease in batch.leases), unknown)
        return [*super().reads(batch, ids), Touch("read", "new seq lens", list(hidden))]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """A future slot for each row, and with speculation its length."""
        lens = Touch("write", "new seq lens", future_slots if self.num_draft_tokens else [])
        return [*super().writes(batch, future_slots), lens]

    def writes_drafts(self, batch: ScheduleBatch) -> list[Touch]:
        """What ``stash_drafts`` will write."""
        return [Touch("write", "future map", self.draft_cells([it.row for it in batch.leases]))]

    def of_row(self, row: int, length: int) -> list[tuple[str, Sequence[int]]]:
        """Its token and its drafts, and how long it is."""
        cells = [row, *self.draft_cells([row])]
        return [("future map", cells), ("new seq lens", [row] if self.num_draft_tokens else [])]
