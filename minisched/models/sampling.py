"""Chooses a token from logits, on lists of numbers; torch and MLX have the same in their terms.

A draw is a function of (seed, request, position) alone, never of the batch, so that every
schedule samples the same tokens. It is a Gumbel-max draw: noise for each token, then the maximum.
A logit that is not a number (NaN) counts as the largest, as in torch; a token that is chosen where
there is one comes marked (``not_numbers.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..core import SamplingParams
from .mix import P, mix


def gumbel(key: int, position: int, token: int) -> float:
    """The noise of one token: -log(-log(u)) with u in (0, 1) made from the three numbers."""
    u = (mix(mix(key, position), token) + 0.5) / P
    return -math.log(-math.log(u))


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
    weights = [math.exp(scaled[token] - scaled[order[0]]) for token in order]
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
        noisy = {at: scaled[at] + gumbel(key, position, at) for at in kept(scaled, params)}
        token = max(noisy, key=lambda token: (noisy[token], -token))
    return -1 - token if math.isnan(logits[token]) else token
