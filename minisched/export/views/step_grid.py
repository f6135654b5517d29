"""A table with a column a step for a terminal, broken into parts where a line would be too long."""

from __future__ import annotations

from collections.abc import Sequence

from .text_page import TextPage, columns_here


def write_rows(page: TextPage, heads: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """The grid of batches: a column a step, with ``heads`` and then a line for each row."""
    rows = max(map(len, columns)) - len(heads)
    write_grid(page, [*heads, *(f"row {row}" for row in range(rows))], columns)


def write_grid(page: TextPage, titles: Sequence[str], columns: Sequence[Sequence[str]]) -> None:
    """A line for each title, with what each column has in it; columns may be short."""
    margin = max(map(len, titles))
    widths = [2 + max(map(len, column)) for column in columns]
    first = 0
    while first < len(columns):
        end, used = first, margin
        while end < len(columns) and (end == first or used + widths[end] <= columns_here()):
            used += widths[end]
            end += 1
        if first:
            page.lines.append("")
        for row, title in enumerate(titles):
            cells = (
                f"{column[row] if row < len(column) else '':>{width}}"
                for column, width in zip(columns[first:end], widths[first:end], strict=True)
            )
            page.lines.append(f"{title:<{margin}}{''.join(cells)}"[: columns_here()].rstrip())
        first = end
