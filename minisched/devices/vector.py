"""Integers with just enough array arithmetic that a relay reads the same on sim and on torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any


class Vector(list[int]):
    """A list whose operators work element by element, as a tensor's do."""

    def __getitem__(self, index: Any) -> Any:
        """One integer by int, a vector by slice or by a sequence of indices."""
        if isinstance(index, int):
            return super().__getitem__(index)
        if isinstance(index, slice):
            return Vector(super().__getitem__(index))
        return Vector(map(super().__getitem__, index))

    def __lt__(self, bound: int) -> list[bool]:  # type: ignore[override]
        return [value < bound for value in self]

    def __neg__(self) -> Vector:
        return Vector([-value for value in self])

    def __sub__(self, other: int) -> Vector:
        return Vector([value - other for value in self])

    def tolist(self) -> list[int]:
        """A plain list."""
        return list(self)


class VectorArrays:
    """The array functions of ``devices/base.py:Arrays``, for vectors."""

    def asarray(self, values: Sequence[int]) -> Vector:
        """A vector of ``values``."""
        return Vector(values)

    def asarrays(self, *columns: Sequence[int]) -> list[Vector]:
        """A vector for each."""
        return [self.asarray(values) for values in columns]

    def where(self, condition: Sequence[bool], a: Vector, b: Vector) -> Vector:
        """``a`` where the condition holds, else ``b``."""
        return Vector([x if chosen else y for chosen, x, y in zip(condition, a, b, strict=True)])

    def clamp(self, values: Vector, min: int) -> Vector:
        """Values below ``min`` raised to it."""
        return Vector([value if value > min else min for value in values])

    def rows_at(self, matrix: Sequence[list[float]], at: Vector) -> list[list[float]]:
        """Some rows of logits, in the order of ``at``."""
        return [matrix[row] for row in at]

    def mask(self, values: Sequence[bool]) -> list[bool]:
        """The booleans as they are."""
        return list(values)

    def add(self, a: Vector, b: Vector) -> Vector:
        """Sums, element by element."""
        return Vector([x + y for x, y in zip(a, b, strict=True)])

    def count_equal(self, a: Vector, b: Vector, width: int, num_rows: int) -> Vector:
        """1 and the equal elements that each row of [num_rows * width] begins with, [num_rows]."""
        pairs = list(zip(a, b, strict=True))
        rows = (pairs[at * width : at * width + width] for at in range(num_rows))
        return Vector(
            [1 + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], row)) for row in rows]
        )
