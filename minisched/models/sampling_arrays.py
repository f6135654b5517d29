"""Chooses tokens from logits for a whole batch, on torch and on MLX: the functions of ``sampling``.

They have the same names here, and the same results, without a transfer to the host. An array's type
names its library, and the array its device (``arrays_of``). The noise comes from exact
integers and is then float64. MLX has float64 on the CPU only, so draws are made there, on a Mac
too; greedy rows stay where the logits are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import SamplingParams
from ..devices.base import Array
from .base import ForwardBatch
from .sampling import NEVER, UNIT, WORD, Adjustments, changes, threefry, vocab_masks


def arrays_of(array: Array) -> Any:
    """Return the functions of an array's library: its device's ``TorchArrays`` or ``MlxArrays``."""
    if type(array).__module__.startswith("mlx."):
        from ..devices.mlx_arrays import MlxArrays

        return MlxArrays()
    from ..devices.thread import TorchArrays

    return TorchArrays(array.device)


def sample(logits: Array, batch: ForwardBatch) -> Array:
    """Return one token for each row of logits, [num_samples], as a model's ``sample``."""
    return choose(adjust(logits, batch.adjustments), batch.sampling)


def choose(logits: Array, sampling: Sequence[tuple[SamplingParams, int, int]]) -> Array:
    """Return a token for each row of ``logits`` [num_reqs, vocab], by (params, key, position)."""
    xp = arrays_of(logits)
    tokens, is_nan = xp.argmax(logits), xp.lib.isnan(logits).any(-1)
    rows = [row for row, (params, _, _) in enumerate(sampling) if not params.is_greedy]
    if rows:
        at = xp.asarray(rows)
        tokens[at] = draw(logits[at], [sampling[row] for row in rows])
    return xp.where(is_nan, -1 - tokens, tokens)


def draw(logits: Array, sampling: Sequence[tuple[SamplingParams, int, int]]) -> Array:
    """Return a Gumbel-max draw for each row of ``logits``, none of them greedy: [num_reqs]."""
    xp, vocab_size = arrays_of(logits), logits.shape[-1]
    params, *numbers = zip(*sampling, strict=True)
    with xp.in_float64():
        keys, positions = xp.numbers(numbers, xp.lib.int64)[:, :, None]
        noisy = scale(logits, params) + gumbel(keys, positions, vocab_size)
        if any(p.top_k > 0 or p.top_p < 1.0 for p in params):
            noisy = xp.where(kept(logits, params), noisy, NEVER)
        return xp.argmax(noisy)


def scale(logits: Array, params: Sequence[SamplingParams]) -> Array:
    """Return ``logits`` [num_reqs, any] by each row's temperature, in float64."""
    xp = arrays_of(logits)
    temperature = xp.numbers([p.temperature for p in params], xp.lib.float64)
    return xp.numbers(logits, xp.lib.float64) / temperature[:, None]


def gumbel(keys: Array, positions: Array, vocab_size: int) -> Array:
    """Return noise [num_reqs, vocab] in float64 for keys and positions [num_reqs, 1], int64."""
    xp = arrays_of(keys)
    numbers = keys >> 32, keys & WORD, xp.arange((vocab_size + 1) // 2), positions
    high, low, pairs, positions = (xp.numbers(each, xp.word) for each in numbers)
    words = xp.lib.stack(threefry((high, low), (pairs, positions)), -1)  # [num_reqs, pairs, 2]
    words = xp.numbers(words.reshape(len(keys), -1)[:, :vocab_size], xp.lib.float64)
    u = (words + 0.5) / 2**32
    return -(-u.log()).log()


def kept(logits: Array, params: Sequence[SamplingParams]) -> Array:
    """Return whether top-k and then top-p keep each token, [num_reqs, vocab].

    Of equal logits, the lower ids stay. Only as many of the most likely tokens are sorted as a row
    may keep: few, if each row with a top-p has a top-k. They are sorted in the dtype of the logits,
    which is fast in 16 bits.
    """
    xp, vocab_size = arrays_of(logits), logits.shape[-1]
    limits = [min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params]
    pairs = zip(limits, params, strict=True)
    width = max((k for k, p in pairs if k < vocab_size or p.top_p < 1.0), default=1)
    top_p = xp.numbers([p.top_p for p in params], xp.lib.float64)[:, None]
    top_k = xp.numbers(limits, xp.lib.int64)[:, None]
    best = scale(xp.largest(logits, width), params)  # [num_reqs, width], falling
    first = best[:, :1]  # infinity minus infinity is no number
    weights = xp.lib.floor(xp.exp(xp.where(best == first, 0.0, best - first)) * UNIT)
    reached = xp.where(xp.arange(width) < top_k, weights, 0.0).cumsum(-1)
    count = (reached < top_p * reached[:, -1:]).sum(-1, keepdims=True) + 1
    count = xp.where((top_p >= 1.0) | (count > top_k), top_k, count)
    is_free = count > width  # such a row keeps every token
    left = first_of(scale(logits, params), best, xp.where(is_free, 1, count))
    return is_free | left


def first_of(values: Array, falling: Array, count: Array) -> Array:
    """Return the places of the ``count`` [num_rows, 1] largest of a row; of equals the first.

    ``falling`` contains at least ``count`` of them in order.
    """
    cut = arrays_of(values).take(falling, count - 1)
    above, equal = values > cut, values == cut
    room = count - above.sum(-1, keepdims=True)
    return above | (equal & ((equal * 1).cumsum(-1) <= room))


# -- Penalties, biases and masks -------------------------------------------------------------------


def adjust(logits: Array, adjustments: Adjustments) -> Array:
    """Return ``logits`` [num_samples, vocab] as the requests want them, not changed in place."""
    if not any(adjustments):
        return logits
    xp = arrays_of(logits)
    logits = xp.wide(logits)  # 16 bits would lose a small penalty
    rows, tokens, *values = changes(adjustments)
    if rows:
        at = xp.asarray(rows), xp.asarray(tokens)
        repetition, frequency, presence, bias = (xp.numbers(each, logits.dtype) for each in values)
        old = logits[at]
        new = xp.where(old > 0, old / repetition, old * repetition)
        logits = xp.put(logits, at, new - frequency - presence + bias)
    masks = vocab_masks(adjustments, logits.shape[-1])
    if masks:
        packed = np.frombuffer(b"".join(masks.values()), np.uint8).reshape(len(masks), -1)
        allowed = xp.mask(np.unpackbits(packed, -1, logits.shape[-1], "little"))
        masked = xp.asarray(list(masks))
        logits = xp.put(logits, masked, xp.where(allowed, logits[masked], NEVER))
    return logits


# -- Log-probabilities -----------------------------------------------------------------------------


def logprobs(logits: Array, at: Array, tokens: Array, top: int) -> Array:
    """Return [num_places, 1 + 2 * top], in float64 for float64 logits, otherwise in float32."""
    xp = arrays_of(logits)
    rows = xp.wide(logits[at])
    values = xp.log_softmax(rows)
    columns = [xp.take(values, tokens[:, None])]
    if top:
        best = most_likely(rows, top)
        columns += [xp.take(values, best), xp.numbers(best, rows.dtype)]
    return xp.lib.concatenate(columns, -1)


def most_likely(rows: Array, count: int) -> Array:
    """Return the ids of the largest logits, [num_places, count], in order; of equals the lower.

    The largest logits select the ids, which are sorted separately: of equal logits torch takes any.
    """
    xp, vocab_size = arrays_of(rows), rows.shape[-1]
    counts = xp.asarray([count] * len(rows))[:, None]
    inside = first_of(rows, xp.largest(rows, count), counts)
    ids = vocab_size - xp.largest(inside * (vocab_size - xp.arange(vocab_size)), count)  # rising
    ids = xp.where(ids < vocab_size, ids, vocab_size - 1)  # where NaN leaves fewer than ``count``
    return xp.take(ids, xp.argsort(-xp.take(rows, ids)))
