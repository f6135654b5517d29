"""A draft model: a second, cheaper model guesses what the target will say."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import ScheduleBatch
from ..devices.base import Array, Arrays, Buffer, Device
from ..devices.cost import CostModel
from ..models.base import Model
from ..models.forward_batch import ForwardBatch
from ..models.not_numbers import without_marks
from ..trace import Touch
from .base import Reach
from .draft_batch import decode_batch, extend_batch


class DraftModel:
    """``STANDALONE`` (SGLang ``speculative/standalone_worker.py``, vLLM ``draft_model.py``).

    It has KV memory of its own and uses the target's slots. Behind each step of the target it runs
    once over what the step has settled, which gives the first draft, and then decodes: k forward
    passes for k drafts, greedily. SGLang starts a step with the decodes; here they end it, so that
    drafts of every kind are there at the same moment, and the host can have them.

    Drafts lie past the end of what the target has slots for. SGLang allocates more there; here the
    draft model has k *spare slots* for each row, and a page table of its own that says so. What is
    in them is computed again, in its real slot, as soon as the target gets there: a run begins at
    the last token that was settled before. (In SGLang's draft KV each token stands one position
    early and the first is missing, as EAGLE wants it; so its drafter never equals its target.)
    """

    def __init__(self, model: Model, num_draft_tokens: int) -> None:
        self.model = model
        self.num_draft_tokens = num_draft_tokens

    def allocate(
        self, device: Device, num_slots: int, max_running_requests: int, max_len: int
    ) -> None:
        """Take KV memory for the target's slots and the spare ones, and a page table."""
        num_rows, k = max_running_requests + 1, self.num_draft_tokens
        self.xp = device.xp
        self.num_slots, self.max_len = num_slots, max_len
        self.limit = min(max_len, self.model.context_len)
        self.model.allocate(device, num_slots + num_rows * k, max_len)
        self.page_table = device.memory("draft page table", num_rows * max_len)
        self.drafts = device.memory("drafts", num_rows * k)

    def bind(self, batch: ScheduleBatch, xp: Arrays) -> bool:
        """Host: whether anybody wants drafts; behind a chunk that is not the last nobody does."""
        return any(batch.delivers)

    def draft(
        self,
        batch: ForwardBatch,
        bound: bool,
        tokens: Array,
        num_accepted: Array,
        page_table: Buffer,
    ) -> Array:
        """Device: the k tokens behind each row's newest, [num_reqs * k]."""
        xp, pad_to = self.xp, self.model.pad_to
        self._map_slots(batch, page_table)
        drafts = self._run(extend_batch(batch, tokens, num_accepted, xp, pad_to))
        num_reqs, k = len(batch.rows), self.num_draft_tokens
        for nth in range(1, k + 1):
            self.drafts[xp.asarray(range(nth - 1, num_reqs * k, k))] = drafts
            if bound and nth < k:
                drafts = self._run(
                    decode_batch(batch, nth, drafts, num_accepted, xp, pad_to, self.limit)
                )
        return self.drafts[xp.asarray(range(num_reqs * k))]

    def touches(self, reaches: Sequence[Reach]) -> list[Touch]:
        """Its own page table and KV, spare slots too; and the target's page table, to copy it."""
        k = self.num_draft_tokens
        touches = [Touch(kind, "drafts", range(len(reaches) * k)) for kind in ("write", "read")]
        for reach in reaches:
            first, rid = reach.row * self.max_len, reach.rid
            spare = self.num_slots + reach.row * k
            mapped_len = min(max(reach.end + k, len(reach.slots)), self.max_len)
            mapped = range(first, first + mapped_len)
            slots = [*reach.slots[: reach.end], *range(spare, spare + k)]
            copied = range(first + reach.start, first + reach.end)
            touches += [
                Touch("read", "page table", copied, rid),
                Touch("write", "draft page table", mapped, rid),
                Touch("read", "draft page table", mapped, rid),
                Touch("read", "draft kv", slots[: reach.start], rid),
                Touch("write", "draft kv", slots[reach.start :], rid),
            ]
        return touches

    def cost(self, cost: CostModel, num_tokens: int) -> int:
        """Nanoseconds on ``sim``: k forward passes."""
        return cost.draft * self.num_draft_tokens

    def _run(self, inputs: ForwardBatch) -> Array:
        """One token a row, [num_reqs]: a draft may be wrong, but never outside the vocabulary."""
        logits = self.model.forward(inputs, inputs.ids, self.page_table)
        return without_marks(self.xp, self.model.sample(logits, inputs))

    def _map_slots(self, batch: ForwardBatch, page_table: Buffer) -> None:
        """The target's slots up to each row's end, and behind it the row's spare ones."""
        if len(batch.table_index):
            self.page_table[batch.table_index] = batch.table_slots
        real: list[int] = []
        cells: list[int] = []
        slots: list[int] = []
        k = self.num_draft_tokens
        for row, start, length in zip(
            batch.rows, batch.prefix_lens, batch.extend_lens, strict=True
        ):
            at, end = row * self.max_len, start + length
            spare = range(at + end, at + min(end + k, self.max_len))
            real += range(at + start, at + end)
            cells += spare
            slots += range(self.num_slots + row * k, self.num_slots + row * k + len(spare))
        index = self.xp.asarray(real)
        self.page_table[index] = page_table[index]
        self.page_table[self.xp.asarray(cells)] = self.xp.asarray(slots)
