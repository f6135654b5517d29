"""Least squares in plain Python: exact where the data are, and trimmed where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from statistics import median

OUTLIER = 4  # residuals beyond so many times their median are left out
TRIMMINGS = 3
SCALE = 10**24  # of the weights, which are integers

Row = Sequence[int]  # one observation's features


def fit(rows: Sequence[Row], values: Sequence[int]) -> list[Fraction]:
    """One coefficient for each feature, so that squares of relative residuals add up to least.

    Relative: a long prompt is as noisy as a short step, in per cent. A feature that others already
    explain gets 0. Fractions: from data without noise the coefficients come back exactly.
    """
    weights = [SCALE // max(1, value) ** 2 + 1 for value in values]
    columns = [*zip(*rows, strict=True), values]
    return solve(
        [
            [Fraction(sum(map(product, weights, one, other))) for other in columns]
            for one in columns[:-1]
        ]
    )


def product(weight: int, one: int, other: int) -> int:
    """A term of the normal equations."""
    return weight * one * other


def solve(matrix: list[list[Fraction]]) -> list[Fraction]:
    """The solution of normal equations [width][width + 1], 0 wherever there is more than one."""
    width = len(matrix)
    pivots: list[int] = []
    for column in range(width):
        if not matrix[column][column]:
            continue  # nothing is left of it: the features before explain it
        pivots.append(column)
        for other in range(width):
            if other != column and matrix[other][column]:
                factor = matrix[other][column] / matrix[column][column]
                pairs = zip(matrix[other], matrix[column], strict=True)
                matrix[other] = [a - factor * b for a, b in pairs]
    return [
        matrix[at][width] / matrix[at][at] if at in pivots else Fraction(0) for at in range(width)
    ]


def trimmed(rows: Sequence[Row], values: Sequence[int]) -> list[Fraction]:
    """``fit``, without what a busy machine has disturbed: observations far from their fit."""
    kept = list(zip(rows, values, strict=True))
    found = fit(rows, values)
    for _ in range(TRIMMINGS):
        residuals = [abs(value - value_at(found, row)) / max(1, value) for row, value in kept]
        limit = OUTLIER * median(residuals) if residuals else 0
        near = [pair for pair, far in zip(kept, residuals, strict=True) if far <= limit]
        if len(near) == len(kept) or len(near) < len(found):
            break
        kept = near
        found = fit([row for row, _ in kept], [value for _, value in kept])
    return found


def not_negative(rows: Sequence[Row], values: Sequence[int], free: int = 0) -> list[Fraction]:
    """``trimmed``, but a feature after the first ``free`` that would make things cheaper is 0."""
    rows = [list(row) for row in rows]
    while True:
        found = trimmed(rows, values)
        worst = min(range(free, len(found)), key=found.__getitem__, default=-1)
        if worst < 0 or found[worst] >= 0:
            return found
        rows = [[0 if at == worst else value for at, value in enumerate(row)] for row in rows]


def value_at(coefficients: Sequence[Fraction], row: Row) -> Fraction:
    """What the fit says of one observation."""
    return sum((a * b for a, b in zip(coefficients, row, strict=True)), Fraction(0))
