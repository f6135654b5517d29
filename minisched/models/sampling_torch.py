"""Chooses tokens from logits for a whole batch, as ``sampling.py`` does for one request."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core import SamplingParams
from ..devices.torch_arrays import ship
from .sampling import WORD, threefry

FIRST_LOOK = 1024  # most likely tokens looked at before the whole vocabulary is sorted


def gumbel(keys: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Noise [num_reqs, vocab] in float64 for keys and positions [num_reqs, 1]."""
    pairs = torch.arange((vocab_size + 1) // 2, device=keys.device)
    words = torch.stack(threefry((keys >> 32, keys & WORD), (pairs, positions)), -1)
    u = (words.flatten(-2)[:, :vocab_size].double() + 0.5) / 2**32
    return -(-u.log()).log()


def choose(logits: Tensor, sampling: Sequence[tuple[SamplingParams, int, int]]) -> Tensor:
    """One token for each row of ``logits`` [num_reqs, vocab]: the first maximum, or a draw.

    ``sampling`` holds (params, key, position) for each row; a draw depends on nothing else. A row
    with a logit that is not a number gives -1 - token (``not_numbers.py``).
    """
    tokens = logits.argmax(-1)  # to which NaN is the largest
    is_nan = logits.gather(-1, tokens[:, None])[:, 0].isnan()
    rows = [row for row, (params, _, _) in enumerate(sampling) if not params.is_greedy]
    if rows:
        at = ship(rows, logits.device)
        tokens[at] = draw(logits[at].double(), [sampling[row] for row in rows])
    return torch.where(is_nan, -1 - tokens, tokens)


def draw(logits: Tensor, sampling: Sequence[tuple[SamplingParams, int, int]]) -> Tensor:
    """A Gumbel-max draw for each row of float64 ``logits``, none of them greedy."""
    params, keys, positions = zip(*sampling, strict=True)
    vocab_size = logits.size(-1)

    def column(values: Sequence[float], dtype: torch.dtype = torch.int64) -> Tensor:
        return ship(values, logits.device, dtype)[:, None]  # [num_reqs, 1]

    scaled = logits / column([p.temperature for p in params], torch.float64)
    noisy = scaled + gumbel(column(keys), column(positions), vocab_size)
    if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
        limits = [min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params]
        wanted = max([FIRST_LOOK, *(limit for limit in limits if limit < vocab_size)])
        width = vocab_size if logits.is_cuda else min(wanted, vocab_size)
        top_p = column([p.top_p for p in params], torch.float64)
        noisy = noisy.masked_fill(~kept(scaled, column(limits), top_p, width), float("-inf"))
    return noisy.argmax(-1)


def kept(scaled: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> Tensor:
    """Which tokens top-k and then top-p leave, [num_reqs, vocab]; of equals the lower ids stay.

    ``top_k`` and ``top_p`` are [num_reqs, 1]; ``top_k`` is the vocabulary size where there is no
    limit. Only the ``width`` most likely tokens are sorted, and all of them where these are too
    few; ``width`` must not lie below a real limit.
    """
    free = (top_k == scaled.size(-1)) & (top_p >= 1.0)
    best = scaled.topk(width).values  # [num_reqs, width], falling
    count = count_kept(scaled, best, top_k, top_p).masked_fill(free, 1)
    if width < scaled.size(-1) and bool((count > width).any()):
        return kept(scaled, top_k, top_p, scaled.size(-1))
    cut = best.gather(-1, count - 1)
    above, equal = scaled > cut, scaled == cut
    room = count - above.sum(-1, keepdim=True)
    return free | above | (equal & (equal.cumsum(-1) <= room))


def count_kept(scaled: Tensor, best: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """How many tokens stay, [num_reqs, 1]; more than ``best`` has means that it is too short."""
    ranks = torch.arange(best.size(-1), device=best.device)
    weights = (best - best[:, :1]).exp().masked_fill(ranks >= top_k, 0.0)
    reached = weights.cumsum(-1)
    all_of_them = (scaled - best[:, :1]).exp().sum(-1, keepdim=True)
    total = torch.where(top_k > best.size(-1), all_of_them, reached[:, -1:])
    wanted = (top_p * total).masked_fill(top_p >= 1.0, float("inf"))
    return ((reached < wanted).sum(-1, keepdim=True) + 1).minimum(top_k)
