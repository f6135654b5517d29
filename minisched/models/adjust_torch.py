"""Changes logits before a token is chosen, as ``adjust.py`` does, on torch tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..devices.torch_arrays import ship
from .adjust import NEVER, Adjustments, changes, vocab_masks


def adjust(logits: Tensor, adjustments: Adjustments) -> Tensor:
    """``logits`` [num_samples, vocab] as the requests want them; the tensor itself is left alone.

    Logits of 16 bits become float32, which changes no logit, and lets a small penalty count.
    """
    if not any(adjustments):
        return logits
    if logits.element_size() < 4:
        logits = logits.float()
    logits = change(logits, adjustments)
    masks = vocab_masks(adjustments, logits.size(-1))
    if masks:
        at = ship(list(masks), logits.device)
        allowed = unpack(masks, logits.device)[:, : logits.size(-1)]
        logits = logits.index_put((at,), logits[at].masked_fill(~allowed, NEVER))
    return logits


def change(logits: Tensor, adjustments: Adjustments) -> Tensor:
    """Penalties and biases."""
    rows, tokens, *values = changes(adjustments)
    if not rows:
        return logits
    at = ship(rows, logits.device), ship(tokens, logits.device)
    repetition, frequency, presence, bias = (
        ship(column, logits.device, logits.dtype) for column in values
    )
    old = logits[at]
    new = torch.where(old > 0, old / repetition, old * repetition)
    return logits.index_put(at, new - frequency - presence + bias)


def unpack(masks: Mapping[int, bytes], where: torch.device) -> Tensor:
    """Masks as booleans, [num_masks, 8 * bytes]; bytes travel, bits are made on the device."""
    packed = torch.frombuffer(bytearray(b"".join(masks.values())), dtype=torch.uint8)
    packed = (packed.pin_memory() if where.type == "cuda" else packed).to(where, non_blocking=True)
    bits = packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=where) & 1
    return bits.bool().view(len(masks), -1)
