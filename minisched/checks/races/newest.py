"""The newest access of one lane to each cell, kept as spans: a step reads thousands in one go."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from ...trace.cells import Span

T = TypeVar("T")


class Stretch(NamedTuple, Generic[T]):
    """Cells in a row with the same newest access."""

    first: int
    last: int
    what: T


class Newest(Generic[T]):
    """What was put last on each cell; stretches in order, none of which overlap."""

    def __init__(self) -> None:
        self.stretches: list[Stretch[T]] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was put anywhere, or all was cleared."""
        return not self.stretches

    def shared(self, spans: Iterable[Span]) -> list[Span]:
        """Those spans, whole, in which a cell has something; most have none, and it is quick."""
        firsts, lasts, end = self._firsts, self._lasts, len(self._lasts)
        return [
            span
            for span in spans
            if (at := bisect_left(lasts, span[0])) < end and firsts[at] <= span[1]
        ]

    def put(self, first: int, last: int, what: T) -> None:
        """Cells ``first`` to ``last`` have a new one."""
        self._replace(first, last, [Stretch(first, last, what)])

    def clear(self, first: int, last: int) -> None:
        """Cells ``first`` to ``last`` have none any more."""
        self._replace(first, last, [])

    def over(self, first: int, last: int) -> Iterator[Stretch[T]]:
        """The stretches that share cells with ``first`` to ``last``, cut to them."""
        for stretch in self.stretches[self._at(first, last)]:
            yield Stretch(max(first, stretch.first), min(last, stretch.last), stretch.what)

    def _at(self, first: int, last: int) -> slice:
        return slice(bisect_left(self._lasts, first), bisect_right(self._firsts, last))

    def _replace(self, first: int, last: int, new: list[Stretch[T]]) -> None:
        at = self._at(first, last)
        if old := self.stretches[at]:
            if old[0].first < first:
                new = [old[0]._replace(last=first - 1), *new]
            if old[-1].last > last:
                new = [*new, old[-1]._replace(first=last + 1)]
        self.stretches[at] = new
        self._firsts[at] = [stretch.first for stretch in new]
        self._lasts[at] = [stretch.last for stretch in new]
