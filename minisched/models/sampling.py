"""The choice of a token from logits, on lists of numbers; torch and MLX have the same functions.

A draw is a function of (seed, request, position) alone, never of the batch, so every schedule
samples the same tokens. It is a Gumbel-max draw: noise for each token, then the maximum. The noise
comes from a counter-based generator, Threefry-2x32 (Salmon, Moraes, Dror and Shaw, "Parallel random
numbers: as easy as 1, 2, 3", SC 2011). It adds, rotates and xors only, so it is exact on every
device.

Top-p adds probabilities. A sum of floats depends on its order, which differs between libraries, and
on a GPU between shapes. So probabilities are whole numbers here, of ``UNIT`` for the most likely
token. Up to a quarter of a million of these add up exactly, in any order.

A logit that is not a number (NaN) counts as the largest, as in torch; a token chosen in its
presence is marked (``base.py``). Before a choice, logits are adjusted as requests ask (penalties,
biases, masks). Log-probabilities are computed from the same logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..core import LogitAdjustment, SamplingParams
from ..devices.sim import Vector

ROUNDS = 13  # the fewest that the authors publish test vectors for
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # bits, in four rounds and the four after them
PARITY = 0x1BD11BDA  # the constant for the third word of a key
WORD = 2**32 - 1
UNIT = 2.0**34  # the whole number of the most likely token's probability


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any], rounds: int = ROUNDS) -> Any:
    """Threefry-2x32: return two random words of 32 bits, for a key and a counter.

    Key and counter are two words each. A word is an integer or an array of integers: signed with 64
    bits, where nothing here overflows, or unsigned with 32.
    """
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    left, right = counter[0] + keys[0], (counter[1] + keys[1]) & WORD
    for at in range(0, rounds, 4):
        for bits in ROTATIONS[at // 4 % 2][: rounds - at]:
            left = left + right  # bits above a word are cut off at the end
            right = (right << bits ^ right >> 32 - bits ^ left) & WORD
        if at + 4 <= rounds:
            count = at // 4 + 1
            left = left + keys[count % 3]
            right = (right + keys[(count + 1) % 3] + count) & WORD
    return left & WORD, right


def gumbel(key: int, position: int, tokens: Iterable[int]) -> dict[int, float]:
    """Return the noise of each token: -log(-log(u)), with u in (0, 1) from the three numbers.

    ``key`` is ``Request.sampling_key``, below 2**63. One counter makes two words, so tokens 2n and
    2n + 1 share it.
    """
    tokens, words = list(tokens), {}
    for pair in {token // 2 for token in tokens}:
        words[pair] = threefry((key >> 32, key & WORD), (pair, position))
    units = {token: (words[token // 2][token % 2] + 0.5) / 2**32 for token in tokens}
    return {token: -math.log(-math.log(u)) for token, u in units.items()}


def falling(logit: float) -> tuple[bool, float]:
    """Return a sort key for logits from the largest to the smallest, with NaN before them."""
    return logit == logit, -logit


def kept(scaled: Sequence[float], params: SamplingParams) -> list[int]:
    """Return the tokens after top-k and then top-p, most likely first; ties go to the lower id.

    A token with a NaN logit stands alone.
    """
    order = sorted(range(len(scaled)), key=lambda token: falling(scaled[token]))
    if math.isnan(scaled[order[0]]):
        return order[:1]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p >= 1.0:
        return order
    weights = [math.exp(scaled[token] - scaled[order[0]]) * UNIT // 1 for token in order]
    wanted, reached = params.top_p * sum(weights), 0.0
    for count, weight in enumerate(weights, start=1):
        reached += weight
        if reached >= wanted:
            return order[:count]
    return order


def choose(logits: Sequence[float], params: SamplingParams, key: int, position: int) -> int:
    """Choose the token for ``position``: the first maximum if greedy, or one Gumbel-max draw.

    Return -1 - token if one of the logits is not a number.
    """
    if params.is_greedy:
        token = min(range(len(logits)), key=lambda token: falling(logits[token]))
    else:
        scaled = [logit / params.temperature for logit in logits]
        noise = gumbel(key, position, kept(scaled, params))
        noisy = {at: scaled[at] + of_token for at, of_token in noise.items()}
        token = max(noisy, key=lambda token: (noisy[token], -token))
    return -1 - token if math.isnan(logits[token]) else token


# -- Penalties, biases and masks: changes of logits before a token is chosen -----------------------
#
# Few tokens are penalised, so few logits are touched. The products are made here, on the host, in
# float64. The rest is single operations on single logits: the same bits in every batch.

Adjustments = Sequence[LogitAdjustment | None]  # [num_samples], or empty: nothing is adjusted
NEVER = float("-inf")  # the logit of a masked token


class Changes(NamedTuple):
    """Operations on single logits, [num_changes] each: places, then operations in order."""

    rows: list[int]
    tokens: list[int]
    repetition: list[float]  # divides a positive logit, multiplies any other
    frequency: list[float]  # taken off
    presence: list[float]  # taken off
    bias: list[float]  # added


def adjust(logits: list[list[float]], adjustments: Adjustments) -> list[list[float]]:
    """Return logits [num_samples, vocab] as the requests want them; other rows unchanged.

    SGLang ``sampling/sampling_batch_info.py:apply_logits_bias``, where masks come before biases.
    Here masks are last, so no bias restores a masked token.
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
    """Return the operations on single logits; no logit is named twice."""
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
    """Return the masks by row, each ceil(vocab_size / 8) bytes, with the bits of allowed tokens.

    A mask without a token is left out: any choice is wrong then, and the token should at least be a
    number.
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


# -- Log-probabilities: of a step's tokens, and the logits that they come from ---------------------
#
# ``core/logprobs.py`` defines them. A row's numbers depend on the row alone: neither on the batch,
# nor on the number of most likely tokens that other rows want. Ids travel as floats (float32 holds
# every integer up to 2**24), so that one array contains all of it.


def logprobs(
    logits: Sequence[Sequence[float]], at: Sequence[int], tokens: Sequence[int], top: int
) -> Vector:
    """Return log-probabilities of ``tokens`` [num_places] by the logits ``at`` [num_places].

    [num_places, 1 + 2 * top]: the token's, then those of the ``top`` most likely tokens, most
    likely first, then their ids.
    """
    rows: list[Any] = []
    for index, token in zip(at, tokens, strict=True):
        row = logits[index]
        highest = max(row)
        norm = highest + math.log(sum(math.exp(logit - highest) for logit in row))
        best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:top]
        rows.append([row[token] - norm, *(row[other] - norm for other in best), *map(float, best)])
    return Vector(rows)
