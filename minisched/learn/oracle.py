"""The truth of an exercise: what a request gets when it is alone, straight from the hash."""

from __future__ import annotations

from collections.abc import Sequence, Set

from ..models.hash import P, mix


def alone(prompt: Sequence[int], new_tokens: int, stops: Set[int], vocab: int) -> list[int]:
    """All tokens of one request: no batch, no cache, no scheduler; greedy, up to a stop token.

    The hash model's definition (``models/hash.py``) once more, one position after the other.
    """
    output: list[int] = []
    while len(output) < new_tokens and not (output and output[-1] in stops):
        lower = upper = 0
        for position, token in enumerate([*prompt, *output]):
            lower += mix(mix(token, position), position)
            upper += mix(mix(lower % P, position), position)
        hidden = mix(upper % P, len(prompt) + len(output))
        output.append(max(range(vocab), key=lambda token: mix(hidden, token)))
    return output
