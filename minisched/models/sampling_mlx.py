"""Chooses tokens from logits for a whole batch on MLX: ``sampling_torch.py``'s twin, lazily.

The noise comes from exact integers and is then float64. MLX has float64 on the CPU only, so draws
are made there, on a Mac too; greedy rows stay where the logits are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..core import SamplingParams
from .base import ForwardBatch
from .sampling import NEVER, UNIT, WORD, Adjustments, changes, threefry, vocab_masks


def sample(logits: mx.array, batch: ForwardBatch) -> mx.array:
    """A model's ``sample``: one token for each row of logits, [num_samples]."""
    return choose(adjust(logits, batch.adjustments), batch.sampling)


def choose(logits: mx.array, sampling: Sequence[tuple[SamplingParams, int, int]]) -> mx.array:
    """One token for each row of ``logits`` [num_reqs, vocab], by its (params, key, position)."""
    tokens = mx.argmax(logits, axis=-1).astype(mx.int32)
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
        return mx.argmax(noisy, axis=-1).astype(mx.int32)


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


# -- Penalties, biases and masks -------------------------------------------------------------------


def adjust(logits: mx.array, adjustments: Adjustments) -> mx.array:
    """``logits`` [num_samples, vocab] as the requests want them; the array itself is left alone."""
    if not any(adjustments):
        return logits
    logits = logits.astype(mx.float32 if logits.dtype.size < 4 else logits.dtype)  # a new handle
    rows, tokens, *values = changes(adjustments)
    if rows:
        at = mx.array(rows), mx.array(tokens)
        repetition, frequency, presence, bias = (mx.array(each, logits.dtype) for each in values)
        old = logits[at]
        new = mx.where(old > 0, old / repetition, old * repetition)
        logits[at] = new - frequency - presence + bias
    masks = vocab_masks(adjustments, logits.shape[-1])
    if masks:
        allowed = unpack(list(masks.values()))[:, : logits.shape[-1]]
        masked = mx.array(list(masks))
        logits[masked] = mx.where(allowed, logits[masked], mx.array(NEVER, dtype=logits.dtype))
    return logits


def unpack(masks: Sequence[bytes]) -> mx.array:
    """Masks as booleans, [num_masks, 8 * bytes]."""
    packed: Any = memoryview(b"".join(masks))
    bits = mx.right_shift(mx.array(packed)[:, None], mx.arange(8, dtype=mx.uint8)) & 1
    return bits.astype(mx.bool_).reshape(len(masks), -1)


# -- Log-probabilities -----------------------------------------------------------------------------

BLOCK = 256  # tokens that are added up by themselves


def logprobs(logits: mx.array, at: mx.array, tokens: mx.array, top: int) -> mx.array:
    """[num_places, 1 + 2 * top], in float64 where logits are, else in float32."""
    rows = logits[at]
    if rows.dtype.size < 4:
        rows = rows.astype(mx.float32)
    norm = logsumexp(rows)
    columns = [mx.take_along_axis(rows, tokens[:, None], axis=-1) - norm]
    if top:
        best = most_likely(rows, top)
        columns += [mx.take_along_axis(rows, best, axis=-1) - norm, best.astype(rows.dtype)]
    return mx.concatenate(columns, axis=-1)


def logsumexp(rows: mx.array) -> mx.array:
    """The logarithm of the sum of exponentials, [num_places, 1], each row by itself.

    ``mx.logsumexp`` adds a row up from one end to the other, which over 49152 tokens is wrong by
    3e-4 (measured on the CPU, in float32). In blocks the error is some 1e-6: that of MLX's
    exponential, which in float64 is no better than in float32.
    """
    highest = mx.max(rows, axis=-1, keepdims=True)
    weights = mx.pad(mx.exp(rows - highest), [(0, 0), (0, -rows.shape[-1] % BLOCK)])
    sums = mx.sum(weights.reshape(rows.shape[0], -1, BLOCK), axis=-1)
    return highest + mx.log(mx.sum(sums, axis=-1, keepdims=True))


def most_likely(rows: mx.array, count: int) -> mx.array:
    """As in torch, [num_places, count]."""
    vocab = rows.shape[-1]
    cut = mx.min(mx.topk(rows, count, axis=-1), axis=-1, keepdims=True)
    above, equal = rows > cut, rows == cut
    room = count - mx.sum(above, axis=-1, keepdims=True)
    inside = above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))
    ranks = mx.arange(vocab, 0, -1)
    ids = mx.sort(vocab - mx.topk(inside * ranks, count, axis=-1), axis=-1)
    ids = mx.minimum(ids, vocab - 1)  # where NaN leaves fewer than ``count``
    order = mx.argsort(-mx.take_along_axis(rows, ids, axis=-1), axis=-1)  # stable
    return mx.take_along_axis(ids, order, axis=-1)
