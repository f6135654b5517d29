"""The hash model on MLX arrays: the same integers as ``hash.py``, lazy all the way."""

from __future__ import annotations

import mlx.core as mx

from ..devices.base import Array
from .base import ForwardBatch
from .hash import LOGIT_SCALE, A, B, C, HashModel, P
from .sampling_mlx import adjust, logprobs, sample


def mix(a: mx.array, b: mx.array) -> mx.array:
    """``mix.mix`` on int64 arrays: the same integers exactly."""
    z = (a * A + b * B + C) % P
    return z * z % P


Row = tuple[Array, Array, Array]  # its slots, its new positions, and the hidden state at each


class HashMlx(HashModel):
    """Equal to ``HashModel`` in every token, greedy or sampled; takes the same options.

    KV is kept in 32 bits and multiplied in 64, where sums and products are exact. Logits are
    float64, which MLX has on the CPU only, so that is where all of it runs, on a Mac too.
    """

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Array) -> Array:
        """Logits [num_logits, vocab] in float64, from exact integers."""
        rows, at = list[Row](), 0
        with mx.stream(mx.cpu):
            for row, start, length in zip(
                batch.rows, batch.prefix_lens, batch.extend_lens, strict=True
            ):
                slots = page_table[row * self.max_len : row * self.max_len + start + length]
                new = slice(at, at + length)
                positions = batch.positions[new].astype(mx.int64)
                rows.append((slots, positions, ids[new].astype(mx.int64)))
                at += length
            for pool in self.kv:
                rows = self._attend(pool, rows)
            states = mx.concatenate([mix(new, positions + 1) for _, positions, new in rows])
            state = self.settle(states[batch.logits_at])[:, None]
            tokens = mx.arange(self.vocab_size, dtype=mx.int64)
            return mix(state, tokens).astype(mx.float64) * LOGIT_SCALE

    def _attend(self, pool: Array, rows: list[Row]) -> list[Row]:
        """One layer: all rows write their new positions, then each reads up to each of them."""
        for slots, positions, new in rows:
            pool[slots[positions]] = mix(new, positions).astype(pool.dtype)
        seen: list[Row] = []
        for slots, positions, _ in rows:
            every = mx.arange(slots.size, dtype=mx.int64)
            sums = mx.cumsum(mix(pool[slots].astype(mx.int64), every))  # [row length]
            seen.append((slots, positions, sums[positions] % P))
        return seen

    def logprobs(self, logits: Array, at: Array, tokens: Array, top: int) -> Array:
        """How likely tokens are, by some of the logits; float64, as these are."""
        with mx.stream(mx.cpu):
            return logprobs(logits, at, tokens, top)

    def sample(self, logits: Array, batch: ForwardBatch) -> Array:
        """One token for each row of logits, [num_samples]."""
        with mx.stream(mx.cpu):
            return sample(adjust(logits, batch.adjustments), batch.sampling)
