"""Prompt lookup on MLX arrays: every row at once, lazily."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx


def lookup(
    history: mx.array,
    max_len: int,
    rows: Sequence[int],
    lengths: mx.array,
    num_draft_tokens: int,
    min_n: int,
    max_n: int,
) -> mx.array:
    """The same drafts as ``prompt_lookup.py:lookup``."""
    tokens = history.reshape(-1, max_len)[mx.array(list(rows))]  # [num_reqs, max_len]
    last = lengths[:, None] - 1
    at = mx.arange(max_len)  # an occurrence is known by where it ends
    alike = at < last
    num_alike = mx.zeros_like(tokens)  # tokens up to ``at`` that are as those up to the last
    for back in range(max_n):
        suffix = mx.take_along_axis(tokens, mx.maximum(last - back, 0), axis=-1)
        alike = alike & (mx.roll(tokens, back, -1) == suffix) & (at >= back)
        num_alike = num_alike + alike
    score = mx.where(num_alike >= min_n, num_alike * max_len + at, -1)
    end = mx.argmax(score, axis=-1, keepdims=True)
    found = mx.take_along_axis(score, end, axis=-1) >= 0
    distance = mx.where(found, last - end.astype(last.dtype), 1)  # else the last token once more
    ahead = mx.arange(num_draft_tokens) % distance
    drafts: mx.array = mx.take_along_axis(tokens, last + 1 - distance + ahead, axis=-1)
    return drafts.flatten()
