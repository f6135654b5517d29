"""The hash model on torch tensors: the same integers as ``hash.py``, a whole batch at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..devices.base import Buffer
from .base import ForwardBatch
from .hash import LOGIT_SCALE, A, B, C, HashModel, P
from .sampling_torch import adjust, choose, logprobs


def mix(a: Tensor, b: Tensor) -> Tensor:
    """``mix.mix`` on int64 tensors: the same integers exactly."""
    z = (a * A + b * B + C) % P
    return z * z % P


class HashTorch(HashModel):
    """Equal to ``HashModel`` in every token, greedy or sampled; takes the same options.

    A batch is laid out as [num_reqs, longest]: each row's positions from 0 on, padded to the
    longest row, or for a longer one where the host only knows how long rows are at most. Every
    value is below 2**31, so sums and products are exact in int64.
    """

    def forward(self, batch: ForwardBatch, ids: Tensor, page_table: Buffer) -> Any:
        """Logits [num_logits, vocab] in float64, from exact integers."""
        end = batch.positions[batch.last][:, None] + 1  # [num_reqs, 1]
        row = batch.token_rows[batch.last][:, None]
        start = end - torch.diff(batch.last + 1, prepend=torch.zeros_like(batch.last[:1]))[:, None]
        longest = max(p + e for p, e in zip(batch.prefix_lens, batch.extend_lens, strict=True))
        position = torch.arange(longest, device=ids.device)  # [longest]
        slots = page_table[row * self.max_len + torch.minimum(position, end - 1)]
        inside, new = position < end, (position >= start) & (position < end)

        lower, upper = self.kv
        lower[page_table[batch.token_rows * self.max_len + batch.positions]] = mix(
            ids, batch.positions
        )
        below = (mix(lower[slots], position) * inside).cumsum(-1)  # what each position attends to
        upper[slots * new] = mix(below % P, position)  # the others write to slot 0: padding
        sums = mix(upper[slots], position).cumsum(-1)
        at = batch.positions[batch.logits_at]
        total = sums[torch.searchsorted(batch.last, batch.logits_at), at]
        state = self.settle(mix(total % P, at + 1))[:, None]
        hashed = mix(state, torch.arange(self.vocab_size, device=ids.device))
        return hashed.double() * LOGIT_SCALE

    def logprobs(self, logits: Tensor, at: Tensor, tokens: Tensor, top: int) -> Any:
        """How likely tokens are, by some of the logits; float64, as these are."""
        return logprobs(logits, at, tokens, top)

    def sample(self, logits: Tensor, batch: ForwardBatch) -> Any:
        """One token for each row of logits, [num_samples]."""
        return choose(adjust(logits, batch.adjustments), batch.sampling)
