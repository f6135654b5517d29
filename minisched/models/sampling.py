"""Chooses a token from logits, on lists of numbers; torch and MLX have the same in their terms.

A draw is a function of (seed, request, position) alone, never of the batch, so that every
schedule samples the same tokens. It is a Gumbel-max draw: noise for each token, then the maximum.
The noise of different tokens has to be independent, so it comes from a counter-based generator of
the literature: Threefry-2x32, the block cipher Threefish with fewer and smaller words (Salmon,
Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011). It adds, rotates and
xors only, so it is exact on every device.

Top-p adds up probabilities, and a sum of floats depends on its order, which is another in each
library, and on a GPU another for each shape. So they are whole numbers, of ``UNIT`` for the most
likely token: up to a quarter of a million of these add up exactly, in any order.

A logit that is not a number (NaN) counts as the largest, as in torch; a token that is chosen where
there is one comes marked (``not_numbers.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..core import SamplingParams

ROUNDS = 13  # the fewest that the authors publish test vectors for
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # bits, in four rounds and the four after them
PARITY = 0x1BD11BDA  # what makes the third word of a key
WORD = 2**32 - 1
UNIT = 2.0**34  # of the whole numbers that probabilities are counted in


def threefry(key: tuple[Any, Any], counter: tuple[Any, Any], rounds: int = ROUNDS) -> Any:
    """Threefry-2x32: two random words of 32 bits, for a key and a counter of two words each.

    A word is an integer or an array of integers, of 64 bits with a sign, where nothing here
    overflows, or of 32 without one.
    """
    keys = (*key, key[0] ^ key[1] ^ PARITY)
    left, right = counter[0] + keys[0], (counter[1] + keys[1]) & WORD
    for at in range(0, rounds, 4):
        for bits in ROTATIONS[at // 4 % 2][: rounds - at]:
            left = left + right  # what lies above a word is cut off at the end
            right = (right << bits ^ right >> 32 - bits ^ left) & WORD
        if at + 4 <= rounds:
            count = at // 4 + 1
            left = left + keys[count % 3]
            right = (right + keys[(count + 1) % 3] + count) & WORD
    return left & WORD, right


def gumbel(key: int, position: int, tokens: Iterable[int]) -> dict[int, float]:
    """The noise of each token: -log(-log(u)), with u in (0, 1) made from the three numbers.

    ``key`` is ``Request.sampling_key``, below 2**63. One counter makes two words, so tokens 2n and
    2n + 1 share it.
    """
    tokens, words = list(tokens), {}
    for pair in {token // 2 for token in tokens}:
        words[pair] = threefry((key >> 32, key & WORD), (pair, position))
    units = {token: (words[token // 2][token % 2] + 0.5) / 2**32 for token in tokens}
    return {token: -math.log(-math.log(u)) for token, u in units.items()}


def falling(logit: float) -> tuple[bool, float]:
    """A key for logits from the largest to the smallest; what is not a number comes before them."""
    return logit == logit, -logit


def kept(scaled: Sequence[float], params: SamplingParams) -> list[int]:
    """Tokens that top-k and then top-p leave, most likely first; ties go to the lower id.

    One token alone where it is not a number.
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
    """The token for ``position``: the first maximum if greedy, else one Gumbel-max draw.

    -1 - token where one of the logits is not a number.
    """
    if params.is_greedy:
        token = min(range(len(logits)), key=lambda token: falling(logits[token]))
    else:
        scaled = [logit / params.temperature for logit in logits]
        noise = gumbel(key, position, kept(scaled, params))
        noisy = {at: scaled[at] + of_token for at, of_token in noise.items()}
        token = max(noisy, key=lambda token: (noisy[token], -token))
    return -1 - token if math.isnan(logits[token]) else token
