"""Chooses a token from logits, on lists of numbers; torch and MLX have the same in their terms.

A draw is a function of (seed, request, position) alone, never of the batch, so that every
schedule samples the same tokens. It is a Gumbel-max draw: noise for each token, then the maximum.
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


def kept(scaled: Sequence[float], params: SamplingParams) -> list[int]:
    """Tokens that top-k and then top-p leave, most likely first; ties go to the lower id."""
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
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
    """The token for ``position``: the first maximum if greedy, else one Gumbel-max draw."""
    if params.is_greedy:
        return max(range(len(logits)), key=lambda token: (logits[token], -token))
    scaled = [logit / params.temperature for logit in logits]
    noisy = {token: scaled[token] + gumbel(key, position, token) for token in kept(scaled, params)}
    return max(noisy, key=lambda token: (noisy[token], -token))
