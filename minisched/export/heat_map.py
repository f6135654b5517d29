"""Heat maps: a figure over two settings, one map for each choice, on one scale.

A colour shows how good a place is, and a number gives the exact value. Speed-ups are brown where a
choice loses, grey for ties and green where it wins. A line separates wins from losses: the
break-even. Amounts go from pale to dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from .scene import CellGrid, GridCell, Part, Scene

Place = tuple[int, int]  # row and column
Scale = Sequence[tuple[str, float, str]]  # a kind, its greatest value, its meaning

TIE = 0.02  # the largest relative difference of a tie
SPEEDUPS: Scale = (
    ("loses much", 0.85, "loses more than 15 %"),
    ("loses", 1 - TIE, "loses"),
    ("ties", 1 + TIE, "ties, within 2 %"),
    ("wins", 1.25, "wins"),
    ("wins more", 1.5, "wins more than 25 %"),
    ("wins much", float("inf"), "wins more than 50 %"),
)
SHADES = ("least", "low", "middle", "high", "most")


def heat_map(
    title: str, about: str, rows: Sequence[str], columns: Sequence[str],
    panels: Mapping[str, Mapping[Place, float]], said: Mapping[str, str], is_speedup: bool,
    notes: Sequence[str] = (),
) -> Scene:  # fmt: skip
    """Draw each choice's values: speed-ups over another choice, or any amounts.

    ``said`` has a quiet note for each choice's name.
    """
    every = [value for values in panels.values() for value in values.values()]
    scale, form = (SPEEDUPS, "{:.2f}×") if is_speedup else (shades_of(every), "{:.4g}")
    parts = []
    for name, values in panels.items():
        cells = {at: GridCell(kind_of(value, scale), form.format(value))
                 for at, value in values.items()}  # fmt: skip
        walls = [*break_even(values)] if is_speedup else []
        parts.append(Part(name, said[name], [CellGrid(rows, columns, cells, walls=walls)]))
    legend = {kind: words for kind, _, words in scale} | {"wall": "break-even"}
    return Scene(title, about, parts, legend, notes)


def shades_of(amounts: Sequence[float]) -> Scale:
    """Return a scale of equal steps from the least amount to the greatest."""
    low, high = min(amounts), max(amounts)
    ends = [low + (high - low) * at / len(SHADES) for at in range(len(SHADES))] + [high]
    return [(kind, end, f"{start:.4g} to {end:.4g}")
            for kind, (start, end) in zip(SHADES, pairwise(ends), strict=True)]  # fmt: skip


def kind_of(value: float, scale: Scale = SPEEDUPS) -> str:
    """Return the look of a place."""
    return next(kind for kind, most, _ in scale if value <= most)


def break_even(values: Mapping[Place, float]) -> Iterator[tuple[Place, Place]]:
    """Yield neighbouring places of which one wins and the other does not."""
    for (row, column), value in values.items():
        for other in ((row, column + 1), (row + 1, column)):
            if other in values and (value > 1 + TIE) != (values[other] > 1 + TIE):
                yield (row, column), other
