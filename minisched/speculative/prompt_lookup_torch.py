"""Prompt lookup on torch tensors: every row at once, without a word to the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..devices.thread import ship


def lookup(
    history: Tensor,
    max_len: int,
    rows: Sequence[int],
    lengths: Tensor,
    num_draft_tokens: int,
    min_n: int,
    max_n: int,
) -> Tensor:
    """The same drafts as ``prompt_lookup.py:lookup`` (vLLM ``ngram_proposer_gpu.py``)."""
    tokens = history.view(-1, max_len)[ship(rows, history.device)]  # [num_reqs, max_len]
    last = lengths[:, None] - 1
    at = torch.arange(max_len, device=history.device)  # an occurrence is known by where it ends
    alike = at < last
    num_alike = torch.zeros_like(tokens)  # tokens up to ``at`` that are as those up to the last
    for back in range(max_n):
        same = tokens.roll(back, -1) == tokens.gather(-1, (last - back).clamp(min=0))
        alike = alike & same & (at >= back)
        num_alike += alike
    score = torch.where(num_alike >= min_n, num_alike * max_len + at, -1)
    best, end = score.max(-1, keepdim=True)
    distance = torch.where(best >= 0, last - end, 1)  # found nothing: the last token once more
    ahead = torch.arange(num_draft_tokens, device=history.device)
    return tokens.gather(-1, last + 1 - distance + ahead % distance).flatten()
