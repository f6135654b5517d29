"""Measured durations by name, and their medians."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from .observed import Piece

Pieces = dict[str, list[Piece]]


def by_name(pieces: Iterable[Piece]) -> Pieces:
    """Pieces sorted by their name."""
    found: Pieces = defaultdict(list)
    for piece in pieces:
        found[piece.name].append(piece)
    return found


def alone(pieces: Sequence[Piece], lost: int) -> list[int]:
    """What each would have taken alone."""
    return [max(0, piece.alone(lost)) for piece in pieces]


def middle(values: Sequence[int]) -> int:
    """The median in whole nanoseconds, 0 of nothing."""
    return round(median(values)) if values else 0


def some(costs: dict[str, int]) -> dict[str, int]:
    """Without what costs nothing."""
    return {name: cost for name, cost in costs.items() if cost}
