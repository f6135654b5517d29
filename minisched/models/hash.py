"""An exact model without weights: the next token depends on every KV slot that it should.

Two layers of integer "attention". A layer's KV at a position is a hash; what a position attends to
is the sum of hashes of all slots before it, read through the page table. The second layer hashes
the first one's sums, so a slot that was wrong when it was read spoils everything after it, as it
does in a real model. A wrong slot, a wrong position, a stale token, a missing chunk: each changes
the tokens.
"""

from __future__ import annotations

from typing import Any

from ..devices.base import Buffer, Device
from ..devices.vector import Vector
from .forward_batch import ForwardBatch
from .mix import P, mix
from .sampling import choose

LOGIT_SCALE = 10 / P  # hashed logits lie in [0, 10), so that temperature and top-p mean something


class HashModel:
    """The hash model on lists of integers (``models/base.py:Model``).

    The default vocabulary is the 256 bytes and an end-of-text token.
    """

    name = "hash"
    pad_to = 1
    tokenizer: Any = None

    def __init__(
        self,
        vocab_size: int = 257,
        context_len: int = 4096,
        eos_ids: frozenset[int] = frozenset({256}),
    ) -> None:
        self.vocab_size = vocab_size
        self.context_len = context_len
        self.eos_ids = eos_ids

    def allocate(self, device: Device, num_slots: int, max_len: int) -> None:
        """Two layers of KV, one integer a slot."""
        self.max_len = max_len
        self.kv: list[Buffer] = [device.memory(f"kv{layer}", num_slots) for layer in (0, 1)]

    def forward(self, batch: ForwardBatch, ids: Vector, page_table: Buffer) -> list[list[float]]:
        """Logits [num_reqs, vocab] from exact integers."""
        logits, at = [], 0
        for row, start, length in zip(
            batch.rows, batch.prefix_lens, batch.extend_lens, strict=True
        ):
            slots = page_table[row * self.max_len : row * self.max_len + start + length]
            hidden = self._attend(slots, start, ids[at : at + length])
            logits.append([mix(hidden, token) * LOGIT_SCALE for token in range(self.vocab_size)])
            at += length
        return logits

    def _attend(self, slots: list[int], start: int, ids: list[int]) -> int:
        """Both layers over one row: read the slots before ``start``, write those of ``ids``."""
        lower, upper = self.kv
        lower_sum = sum(mix(value, p) for p, value in enumerate(lower[slots[:start]]))
        upper_sum = sum(mix(value, p) for p, value in enumerate(upper[slots[:start]]))
        for position, token in enumerate(ids, start):
            key = lower[slots[position]] = mix(token, position)
            lower_sum += mix(key, position)
            key = upper[slots[position]] = mix(lower_sum % P, position)
            upper_sum += mix(key, position)
        return mix(upper_sum % P, start + len(ids))

    def sample(self, logits: list[list[float]], batch: ForwardBatch) -> Vector:
        """One token a row."""
        return Vector(
            choose(row, *sampling) for row, sampling in zip(logits, batch.sampling, strict=True)
        )
