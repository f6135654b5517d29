"""Log-probabilities from logits on MLX arrays, as ``logprobs.py`` has them on lists, lazily.

MLX's exponential on the CPU has float32's precision, in float64 too (measured: 1e-6 relative, so
1e-8 in a log-probability).
"""

from __future__ import annotations

import mlx.core as mx


def logprobs(logits: mx.array, at: mx.array, tokens: mx.array, top: int) -> mx.array:
    """How likely each of ``tokens`` [num_places] is, by the logits ``at`` [num_places].

    [num_places, 1 + 2 * top] in float32, or float64 where the logits are: its log-probability,
    those of the ``top`` most likely tokens, and their ids.
    """
    rows = logits[at]
    if rows.dtype.size < 4:
        rows = rows.astype(mx.float32)
    norm = mx.logsumexp(rows, axis=-1, keepdims=True)  # each row by itself
    columns = [mx.take_along_axis(rows, tokens[:, None], axis=-1) - norm]
    if top:
        best = most_likely(rows, top)
        columns += [mx.take_along_axis(rows, best, axis=-1) - norm, best.astype(rows.dtype)]
    return mx.concatenate(columns, axis=-1)


def most_likely(rows: mx.array, count: int) -> mx.array:
    """The ids of the largest logits, [num_places, count], largest first; of equals the lower first.

    ``topk`` says which logits stay, but of equals it takes any; so ids are chosen by themselves.
    """
    vocab = rows.shape[-1]
    cut = mx.min(mx.topk(rows, count, axis=-1), axis=-1, keepdims=True)
    above, equal = rows > cut, rows == cut
    room = count - mx.sum(above, axis=-1, keepdims=True)
    inside = above | (equal & (mx.cumsum(equal.astype(mx.int32), axis=-1) <= room))
    ranks = mx.arange(vocab, 0, -1)
    ids = mx.sort(vocab - mx.topk(inside * ranks, count, axis=-1), axis=-1)
    order = mx.argsort(-mx.take_along_axis(rows, ids, axis=-1), axis=-1)  # stable
    return mx.take_along_axis(ids, order, axis=-1)
