"""The hash model on torch tensors and on MLX arrays: the integers of ``hash.py`` on lists."""

from __future__ import annotations

from typing import Any

from ..devices.base import Array, Buffer
from .base import ForwardBatch
from .hash import LOGIT_SCALE, HashModel, P
from .hash import mix as mix_numbers
from .sampling_arrays import arrays_of, logprobs, sample

mix: Any = mix_numbers  # which does the same with int64 arrays, element by element


class HashArrays(HashModel):
    """Equal to ``HashModel`` in every token, greedy or sampled; a whole batch at a time.

    A batch is laid out as [num_reqs, longest]: each row's positions from 0 on, padded to the
    longest row, or further where the host knows only a bound.

    Every value is below 2**31, so sums and products are exact in int64. Logits are hashed integers
    times a constant, so they are the same float64 everywhere. MLX has float64 on the CPU only, so
    the model runs there, on a Mac too.
    """

    def forward(self, batch: ForwardBatch, ids: Array, page_table: Buffer) -> Array:
        """Return logits [num_logits, vocab] in float64, from exact integers."""
        with arrays_of(ids).in_float64():
            return super().forward(batch, ids, page_table)

    def forward_layer(
        self, layer: int, batch: ForwardBatch, hidden: Any, page_table: Buffer
    ) -> Any:
        """Run one layer, from hidden states [num_tokens] to hidden states; the first takes ids."""
        kv, xp = self.kv[layer], arrays_of(hidden)
        int64, row_starts = xp.lib.int64, batch.token_rows * self.max_len
        positions = xp.numbers(batch.positions, int64)
        new = mix(xp.numbers(hidden, int64), positions)
        kv[page_table[row_starts + batch.positions]] = xp.numbers(new, kv.dtype)
        longest = max(p + e for p, e in zip(batch.prefix_lens, batch.extend_lens, strict=True))
        seen, end = xp.arange(longest), batch.positions[batch.last][:, None]
        slots = page_table[row_starts[batch.last][:, None] + xp.where(seen < end, seen, end)]
        every = mix(xp.numbers(kv[slots], int64), xp.numbers(seen, int64))  # [num_reqs, longest]
        row = (batch.last < xp.arange(len(hidden))[:, None]).sum(-1)  # of each token
        return every.cumsum(-1)[row, batch.positions] % P

    def compute_logits(self, batch: ForwardBatch, hidden: Any) -> Any:
        """Return logits [num_logits, vocab] in float64, from exact integers."""
        xp, at = arrays_of(hidden), batch.logits_at
        positions = xp.numbers(batch.positions[at], xp.lib.int64)
        state = self.settle(mix(hidden[at], positions + 1))[:, None]
        hashed = mix(state, xp.numbers(xp.arange(self.vocab_size), xp.lib.int64))
        return xp.numbers(hashed, xp.lib.float64) * LOGIT_SCALE

    def logprobs(self, logits: Array, at: Array, tokens: Array, top: int) -> Any:
        """Return log-probabilities of tokens, from some of the logits; in float64."""
        with arrays_of(logits).in_float64():
            return logprobs(logits, at, tokens, top)

    def sample(self, logits: Array, batch: ForwardBatch) -> Any:
        """Return one token for each row of logits, [num_samples]."""
        with arrays_of(logits).in_float64():
            return sample(logits, batch)
