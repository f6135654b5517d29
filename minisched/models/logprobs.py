"""Log-probabilities from logits, on lists of numbers; torch and MLX have the same in their terms.

``core/logprobs.py`` says what they are. A row's numbers depend on the row alone: neither on the
batch, nor on how many of the most likely tokens others want. Ids travel as floats (float32 holds
every integer up to 2**24), so that one array brings all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..devices.vector import Vector


def logprobs(
    logits: Sequence[Sequence[float]], at: Sequence[int], tokens: Sequence[int], top: int
) -> Vector:
    """How likely each of ``tokens`` [num_places] is, by the logits ``at`` [num_places].

    [num_places, 1 + 2 * top]: its log-probability, then those of the ``top`` most likely tokens,
    most likely first, then their ids.
    """
    rows: list[Any] = []
    for index, token in zip(at, tokens, strict=True):
        row = logits[index]
        norm = logsumexp(row)
        best = most_likely(row, top)
        rows.append([row[token] - norm, *(row[other] - norm for other in best), *map(float, best)])
    return Vector(rows)


def logsumexp(row: Sequence[float]) -> float:
    """The logarithm of the sum of exponentials."""
    highest = max(row)
    return highest + math.log(sum(math.exp(logit - highest) for logit in row))


def most_likely(row: Sequence[float], count: int) -> list[int]:
    """The ``count`` ids with the largest logits, largest first; of equals the lower id first."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))[:count]
