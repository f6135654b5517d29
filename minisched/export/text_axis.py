"""The time axis below the lanes of a text."""

from __future__ import annotations

from .units import exact, tick_step


def draw_axis(longest: int, cells: int, margin: int, start: int = 0) -> list[str]:
    """Two lines: ``cells`` characters for ``longest`` nanoseconds from ``start`` on.

    ``margin`` is how many characters stand before the first cell. Marks are at round times, and a
    number stands where there is room for it.
    """
    marks, numbers = ["─"] * cells, [" "] * cells
    longest, step, free = max(1, longest), tick_step(max(1, longest)), 0
    for time in range(-(-start // step) * step, start + longest + 1, step):
        cell, said = min((time - start) * cells // longest, cells - 1), exact(time)
        marks[cell] = "┴"
        if free <= cell <= cells - len(said):
            numbers[cell : cell + len(said)] = said
            free = cell + len(said) + 1
    unit = "time in ms" if margin >= 12 else "ms"
    return [
        " " * (margin - 1) + "└" + "".join(marks),
        f"{unit:>{margin - 2}}  " + "".join(numbers).rstrip(),
    ]
