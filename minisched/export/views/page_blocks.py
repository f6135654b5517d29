"""Pages that go the same way together: neighbours with one owner, from one moment to another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..state import Stay


@dataclass(frozen=True)
class PlaceBlock:
    """Places ``first`` to ``last`` (page or row ids) in the same hands for the same time."""

    first: int
    last: int
    stay: Stay  # of the first of them

    @property
    def size(self) -> int:
        """How many places."""
        return self.last - self.first + 1


def number(stay: Stay) -> int:
    """The id in ``page 7`` or ``row 7``."""
    return int(stay.place.split()[1])


def blocks_of(stays: Iterable[Stay]) -> list[PlaceBlock]:
    """All stays, each in exactly one block; in order of places, then of time."""
    found: list[PlaceBlock] = []
    ends: dict[tuple[object, ...], int] = {}  # what goes on below -> its place in ``found``
    for stay in sorted(stays, key=lambda stay: (number(stay), stay.start)):
        at, alike = number(stay), (stay.kind, stay.label, stay.start, stay.end)
        if (above := ends.pop((at - 1, *alike), None)) is None:
            found.append(PlaceBlock(at, at, stay))
            above = len(found) - 1
        else:
            found[above] = replace(found[above], last=at)
        ends[(at, *alike)] = above
    return found


def runs(numbers: Iterable[int]) -> str:
    """Ids as a reader likes them: ``3-5 8``."""
    parts: list[list[int]] = []
    for at in sorted(numbers):
        if parts and parts[-1][1] == at - 1:
            parts[-1][1] = at
        else:
            parts.append([at, at])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
