"""Spans of a resource's cells, read from their text in a trace: ``3-7 9`` (``Act.at``).

A span may be a gigabyte, so no function counts its cells. The spans of one text are in order and
don't touch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

Span = tuple[int, int]  # first and last cell

LARGEST = (1 << 53) - 1  # JSON's readers agree on integers up to here
ONE = re.compile(r"[0-9]{1,16}(-[0-9]{1,16})?", re.ASCII)


@lru_cache(maxsize=1 << 16)
def spans_of(text: str) -> tuple[Span, ...]:
    """Return the spans in ``3-7 9``; they are cached, because a run reads the same texts often.

    Raises:
        ValueError: the text has another form; one sentence.
    """
    spans = tuple(map(_span, text.split()))
    for one, other in pairwise(spans):
        if other[0] <= one[1]:
            raise ValueError(f"{span_text(*other)} comes after {span_text(*one)}: not in order.")
    return spans


def _span(part: str) -> Span:
    if not ONE.fullmatch(part):
        raise ValueError(f"{part[:40]!r} is no span of cells; one looks like 3-7, or 9.")
    first, _, last = part.partition("-")
    span = int(first), int(last or first)
    if span[1] < span[0]:
        raise ValueError(f"the span {part} ends before it begins.")
    if span[1] > LARGEST:
        raise ValueError(f"cell {span[1]} is too large: the largest is {LARGEST}.")
    return span


def span_text(first: int, last: int) -> str:
    """Return one span: ``3-7``, or ``9``."""
    return str(first) if first == last else f"{first}-{last}"


def is_in(cell: int, text: str) -> bool:
    """Return whether a cell is one of ``3-7 9``."""
    return any(first <= cell <= last for first, last in spans_of(text))


def cells_of(text: str) -> list[int]:
    """Return all cells of ``3-7 9``."""
    return [cell for first, last in spans_of(text) for cell in range(first, last + 1)]


def common(some: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """Return the cells that are in both."""
    if not some or not others or some[-1][1] < others[0][0] or others[-1][1] < some[0][0]:
        return
    at = 0
    for first, last in some:
        while at < len(others) and others[at][1] < first:
            at += 1
        here = at
        while here < len(others) and others[here][0] <= last:
            yield max(first, others[here][0]), min(last, others[here][1])
            here += 1


def joined(spans: Iterable[Span]) -> str:
    """Return spans in any order as text; spans that touch become one."""
    found: list[list[int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return " ".join(span_text(first, last) for first, last in found)
