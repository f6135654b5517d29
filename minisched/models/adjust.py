"""Changes logits before a token is chosen, on lists of numbers; torch and MLX do the same.

Few tokens are penalised, so few logits are touched. The products are made here, on the host, in
float64. What is left are single operations on single logits, and these have one result each (IEEE
754): the same bits in every batch, and for float64 on every device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..core import LogitAdjustment

Adjustments = Sequence[LogitAdjustment | None]  # [num_samples], or empty: nothing is adjusted
NEVER = float("-inf")  # the logit of a token that may not come next


class Changes(NamedTuple):
    """What happens to single logits, [num_changes] each: which ones, and then what, in order."""

    rows: list[int]
    tokens: list[int]
    repetition: list[float]  # divides the logit if that is positive, else multiplies it
    frequency: list[float]  # taken off
    presence: list[float]  # taken off
    bias: list[float]  # added


def adjust(logits: list[list[float]], adjustments: Adjustments) -> list[list[float]]:
    """Logits [num_samples, vocab] as the requests want them; rows without a wish as they are.

    SGLang ``sampling/sampling_batch_info.py:apply_logits_bias``, where masks come before biases;
    here masks are last, so that nothing brings a masked token back.
    """
    if not any(adjustments):
        return logits
    adjusted = [list(row) if wish else row for row, wish in zip(logits, adjustments, strict=True)]
    for row, token, repetition, frequency, presence, bias in zip(
        *changes(adjustments), strict=True
    ):
        logit = adjusted[row][token]
        logit = logit / repetition if logit > 0 else logit * repetition
        adjusted[row][token] = logit - frequency - presence + bias
    for at, mask in vocab_masks(adjustments, len(logits[0])).items():
        adjusted[at] = [
            logit if mask[token >> 3] >> (token & 7) & 1 else NEVER
            for token, logit in enumerate(adjusted[at])
        ]
    return adjusted


def changes(adjustments: Adjustments) -> Changes:
    """What to do to single logits; no logit is named twice."""
    found = Changes([], [], [], [], [], [])
    for row, wish in enumerate(adjustments):
        if wish is None:
            continue
        seen, counts, biases = wish.seen, wish.counts, wish.logit_bias
        tokens = list({*seen, *counts, *biases})
        found.rows.extend([row] * len(tokens))
        found.tokens.extend(tokens)
        found.repetition.extend([wish.repetition_penalty if at in seen else 1.0 for at in tokens])
        found.frequency.extend([wish.frequency_penalty * counts.get(at, 0) for at in tokens])
        found.presence.extend([wish.presence_penalty if at in counts else 0.0 for at in tokens])
        found.bias.extend([biases.get(at, 0.0) for at in tokens])
    return found


def vocab_masks(adjustments: Adjustments, vocab_size: int) -> dict[int, bytes]:
    """The masks by row, each ceil(vocab_size / 8) bytes; tokens that a mask lacks may not come.

    A mask that lets no token pass is left out: there is nothing to choose from then, whatever is
    chosen is wrong, and it should at least be a number.
    """
    size, in_last = -(-vocab_size // 8), vocab_size % 8
    masks = {}
    for row, wish in enumerate(adjustments):
        if wish is None or wish.vocab_mask is None:
            continue
        mask = bytearray(wish.vocab_mask[:size].ljust(size, b"\0"))
        if in_last:
            mask[-1] &= (1 << in_last) - 1
        if any(mask):
            masks[row] = bytes(mask)
    return masks
