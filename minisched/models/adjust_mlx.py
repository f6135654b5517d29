"""Changes logits before a token is chosen, as ``adjust.py`` does, on MLX arrays, lazily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from .adjust import NEVER, Adjustments, changes, vocab_masks


def adjust(logits: mx.array, adjustments: Adjustments) -> mx.array:
    """``logits`` [num_samples, vocab] as the requests want them; the array itself is left alone.

    Logits of 16 bits become float32, which changes no logit, and lets a small penalty count.
    """
    if not any(adjustments):
        return logits
    wide = logits.astype(mx.float32 if logits.dtype.size < 4 else logits.dtype)  # a new handle
    change(wide, adjustments)
    mask(wide, adjustments)
    return wide


def change(logits: mx.array, adjustments: Adjustments) -> None:
    """Penalties and biases."""
    rows, tokens, *values = changes(adjustments)
    if not rows:
        return
    at = column(rows, mx.int32), column(tokens, mx.int32)
    repetition, frequency, presence, bias = (column(value, logits.dtype) for value in values)
    old = logits[at]
    new = mx.where(old > 0, old / repetition, old * repetition)
    logits[at] = new - frequency - presence + bias


def mask(logits: mx.array, adjustments: Adjustments) -> None:
    """Minus infinity for tokens that may not come next."""
    masks = vocab_masks(adjustments, logits.shape[-1])
    if masks:
        at = column(list(masks), mx.int32)
        allowed = unpack(masks)[:, : logits.shape[-1]]
        logits[at] = mx.where(allowed, logits[at], mx.array(NEVER, dtype=logits.dtype))


def unpack(masks: Mapping[int, bytes]) -> mx.array:
    """Masks as booleans, [num_masks, 8 * bytes]."""
    packed: Any = memoryview(b"".join(masks.values()))
    bits = mx.right_shift(mx.array(packed)[:, None], mx.arange(8, dtype=mx.uint8)) & 1
    return bits.astype(mx.bool_).reshape(len(masks), -1)


def column(values: list[Any], dtype: mx.Dtype) -> mx.array:
    """Numbers from the host."""
    return mx.array(values, dtype=dtype)
