"""The pool-indexed FutureMap: each row of the request table has a future slot of its own.

In an engine with drafts, rows also have drafts and a length in it.
"""

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
        size = self.num_rows * (1 + shape.num_draft_tokens)  # drafts: ``FutureMapDrafts``
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


class FutureMapDrafts(FutureMapPool):
    """Carries drafts and lengths from one step with drafts to the next (``worker/verify.py``).

    The host does not know how many drafts a step in flight accepts. So the device keeps the length
    of each row (SGLang ``new_seq_lens_buf``). The drafts of the next step have future slots after
    those of the rows, ``num_draft_tokens`` for each row.
    """

    def __init__(self, device: Device, shape: RelayShape) -> None:
        super().__init__(device, shape)
        self.num_draft_tokens = shape.num_draft_tokens
        self.new_seq_lens_buf = device.memory("new seq lens", self.num_rows)

    def bind(self, batch: ScheduleBatch, previous: ScheduleBatch | None) -> Bound:
        """Replace each unknown id by minus its future slot.

        The mark has the slots of tokens only, because drafts have no slots of their own step.
        """
        rows = [lease.row for lease in batch.leases]
        ids = [
            -self.future_slot(row, at) if token is None else token
            for row, tokens in zip(rows, batch.ids, strict=True)
            for at, token in enumerate(tokens)
        ]
        self.record(batch, [token for token in ids if -token < self.num_rows], rows)
        return ids, rows

    def future_slot(self, row: int, draft: int) -> int:
        """Return the future slot of a row's newest token (``draft`` 0), or of a draft (from 1)."""
        return row if not draft else self.num_rows + row * self.num_draft_tokens + draft - 1

    def draft_slots(self, rows: Sequence[int]) -> list[int]:
        """Return the future slots of the rows' drafts, [num_reqs * num_draft_tokens]."""
        return [
            self.future_slot(row, draft)
            for row in rows
            for draft in range(1, self.num_draft_tokens + 1)
        ]

    # -- on the device

    def start_of(self, rows: Sequence[int]) -> Array:
        """Return the position of each row's newest token, [num_reqs]."""
        return self.new_seq_lens_buf[self.xp.asarray(rows)] - 1

    def stash_lens(self, rows: Sequence[int], seq_lens: Array) -> None:
        """Write the number of tokens that each row has now, [num_reqs]."""
        self.new_seq_lens_buf[self.xp.asarray(rows)] = seq_lens

    def stash_drafts(self, rows: Sequence[int], drafts: Array) -> None:
        """Write the drafts of each row's next step, [num_reqs * num_draft_tokens]."""
        self.token_ids_map[self.xp.asarray(self.draft_slots(rows))] = drafts

    # -- on the host: the memory that the ops will touch

    def reads(self, batch: ScheduleBatch, ids: list[int]) -> list[Touch]:
        """Return the future slots of unknown ids, and the lengths of rows with an unknown start."""
        unknown = batch.start_unknown if isinstance(batch, VerifyBatch) else ()
        rows = compress((lease.row for lease in batch.leases), unknown)
        return [*super().reads(batch, ids), Touch("read", "new seq lens", list(rows))]

    def writes(self, batch: ScheduleBatch, future_slots: list[int]) -> list[Touch]:
        """Return the future slot and the length of each row."""
        return [*super().writes(batch, future_slots), Touch("write", "new seq lens", future_slots)]

    def writes_drafts(self, batch: ScheduleBatch) -> list[Touch]:
        """Return the memory that ``stash_drafts`` will touch."""
        return [Touch("write", "future map", self.draft_slots([it.row for it in batch.leases]))]

    def of_row(self, row: int, length: int) -> list[tuple[str, Sequence[int]]]:
        """Return the future slots of the row's token and drafts, and the cell of its length."""
        return [("future map", [row, *self.draft_slots([row])]), ("new seq lens", [row])]
