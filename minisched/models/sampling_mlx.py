"""Chooses tokens from logits for a whole batch, as ``sampling.py`` does for one request, lazily.

The noise comes from exact integers and is then float64. MLX has float64 on the CPU only, so draws
are made there, on a Mac too; greedy rows stay where the logits are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mlx.core as mx

from ..core import SamplingParams
from .sampling import UNIT, WORD, threefry

TOKEN = mx.int32


def sample(logits: mx.array, sampling: Sequence[tuple[SamplingParams, int, int]]) -> mx.array:
    """One token for each row of ``logits`` [num_reqs, vocab]: the first maximum, or a draw.

    ``sampling`` holds (params, key, position) for each row; a draw depends on nothing else. A row
    with a logit that is not a number gives -1 - token (``not_numbers.py``).
    """
    tokens = mx.argmax(logits, axis=-1).astype(TOKEN)
    is_nan = mx.isnan(mx.max(logits, axis=-1))  # earlier versions' argmax skips NaN (mlx #4274)
    rows = [row for row, (params, _, _) in enumerate(sampling) if not params.is_greedy]
    if rows:
        at = mx.array(rows)
        tokens[at] = draw(logits[at], [sampling[row] for row in rows])
    return mx.where(is_nan, -1 - tokens, tokens)


def draw(logits: mx.array, sampling: Sequence[tuple[SamplingParams, int, int]]) -> mx.array:
    """A Gumbel-max draw for each row of ``logits``, none of them greedy: [num_reqs]."""
    params, keys, positions = zip(*sampling, strict=True)
    with mx.stream(mx.cpu):
        scaled = logits.astype(mx.float64) / column([p.temperature for p in params], mx.float64)
        noisy = scaled + gumbel(column(keys), column(positions), scaled.shape[-1])
        if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
            noisy = mx.where(kept(scaled, params), noisy, -mx.inf)
        return mx.argmax(noisy, axis=-1).astype(TOKEN)


def gumbel(keys: mx.array, positions: mx.array, vocab_size: int) -> mx.array:
    """Noise [num_reqs, vocab] in float64 for keys and positions [num_reqs, 1]."""
    key = ((keys >> 32).astype(mx.uint32), (keys & WORD).astype(mx.uint32))
    pairs = mx.arange((vocab_size + 1) // 2, dtype=mx.uint32)
    words = mx.stack(threefry(key, (pairs, positions.astype(mx.uint32))), -1)  # [.., pairs, 2]
    hashed = words.reshape(len(keys), -1)[:, :vocab_size].astype(mx.float64)
    return -mx.log(-mx.log((hashed + 0.5) / 2**32))


def kept(scaled: mx.array, params: Sequence[SamplingParams]) -> mx.array:
    """Which tokens top-k and then top-p leave, [num_reqs, vocab]; of equals the lower ids stay."""
    vocab_size = scaled.shape[-1]
    top_k = column([p.top_k if p.top_k > 0 else vocab_size for p in params])
    top_p = column([p.top_p for p in params], mx.float64)
    order = mx.argsort(-scaled, axis=-1)  # stable
    falling = mx.take_along_axis(scaled, order, axis=-1)
    best = falling[:, :1]  # an infinite one less itself is no number
    below = mx.where(falling == best, 0.0, falling - best)
    e = mx.array(math.e, dtype=mx.float64)  # ``mx.exp`` has the digits of float32 alone
    weights = mx.floor(mx.power(e, below) * UNIT)
    inside = mx.arange(vocab_size) < top_k
    weights = mx.where(inside, weights, 0.0)
    reached = mx.cumsum(weights, axis=-1)  # with this token and all that are more likely
    chosen = inside & ((reached - weights < top_p * reached[:, -1:]) | (top_p >= 1.0))
    return mx.put_along_axis(chosen, order, chosen, axis=-1)


def column(values: Sequence[float], dtype: mx.Dtype = mx.int64) -> mx.array:
    """Values as a column, [num_reqs, 1]."""
    return mx.array(list(values), dtype=dtype)[:, None]
