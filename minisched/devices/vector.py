"""Integers with just enough array arithmetic that a relay reads the same on sim and on torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Vector(list[int]):
    """A list whose operators work element by element, as a tensor's do."""

    def __getitem__(self, index: Any) -> Any:
        """One integer by int, a vector by slice or by a sequence of indices."""
        if isinstance(index, int):
            return super().__getitem__(index)
        if isinstance(index, slice):
            return Vector(super().__getitem__(index))
        return Vector(self[at] for at in index)

    def __lt__(self, bound: int) -> list[bool]:  # type: ignore[override]
        return [value < bound for value in self]

    def __neg__(self) -> Vector:
        return Vector(-value for value in self)

    def __sub__(self, other: int) -> Vector:
        return Vector(value - other for value in self)

    def tolist(self) -> list[int]:
        """A plain list."""
        return list(self)


class VectorArrays:
    """The array functions of ``devices/base.py:Arrays``, for vectors."""

    def asarray(self, values: Sequence[int]) -> Vector:
        """A vector of ``values``."""
        return Vector(values)

    def where(self, condition: Sequence[bool], a: Vector, b: Vector) -> Vector:
        """``a`` where the condition holds, else ``b``."""
        return Vector(x if chosen else y for chosen, x, y in zip(condition, a, b, strict=True))

    def clamp(self, values: Vector, min: int) -> Vector:
        """Values below ``min`` raised to it."""
        return Vector(value if value > min else min for value in values)
