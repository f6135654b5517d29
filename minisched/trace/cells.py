"""Cells of a resource as text, so that a trace can be read: ``3-7 9``."""

from __future__ import annotations

from collections.abc import Iterable

Span = tuple[int, int]  # first and last cell


def to_text(cells: Iterable[int] | str) -> str:
    """Cells in order, each once, as spans: ``3-7 9``."""
    if isinstance(cells, str):
        return cells
    if isinstance(cells, list) and len(cells) == 1:
        return str(cells[0])
    if isinstance(cells, range) and cells.step == 1:
        return span_text(cells[0], cells[-1]) if cells else ""
    spans: list[list[int]] = []
    for cell in sorted(set(cells)):
        if spans and cell == spans[-1][1] + 1:
            spans[-1][1] = cell
        else:
            spans.append([cell, cell])
    return " ".join(span_text(first, last) for first, last in spans)


def span_text(first: int, last: int) -> str:
    """One span: ``3-7``, or ``9``."""
    return str(first) if first == last else f"{first}-{last}"


def spans_of(text: str) -> list[Span]:
    """The spans in ``3-7 9``.

    Raises:
        ValueError: it is not written like that.
    """
    return [span_of(part) for part in text.split()]


def span_of(part: str) -> Span:
    """One span.

    Raises:
        ValueError: it is none.
    """
    first, dash, last = part.partition("-")
    if not (first.isdecimal() and (last.isdecimal() if dash else not last)):
        raise ValueError(f"{part!r} is no span of cells; one looks like 3-7, or 9.")
    if dash and int(last) < int(first):
        raise ValueError(f"the span {part} ends before it begins.")
    return int(first), int(last or first)
