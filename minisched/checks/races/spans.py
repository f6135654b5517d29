"""What two lists of spans have in common, and what one has beside the other; all in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from ...trace.cells import Span, span_text


@lru_cache(maxsize=1 << 16)
def cached_spans(text: str) -> tuple[Span, ...]:
    """The spans in ``3-7 9``, as quickly as can be: a run has millions of them."""
    parts = [part.partition("-") for part in text.split()]
    return tuple([(int(first), int(last or first)) for first, _, last in parts])


def common(some: Sequence[Span], others: Sequence[Span]) -> Iterator[Span]:
    """The cells that are in both."""
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


def without(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """The cells of the first that are not in the second."""
    left: list[Span] = []
    for first, last in some:
        for start, end in common([(first, last)], others):
            if first < start:
                left.append((first, start - 1))
            first = end + 1
        if first <= last:
            left.append((first, last))
    return left


def joined(spans: Sequence[Span]) -> str:
    """Spans in any order as an act has them, those that touch made one."""
    found: list[list[int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1][1] = max(found[-1][1], last)
        else:
            found.append([first, last])
    return " ".join(span_text(first, last) for first, last in found)
