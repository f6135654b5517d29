"""Heat maps: speed-ups over two settings, one map for each choice, on one scale.

Speed-ups are brown where a choice loses, grey for ties and green where it wins, and a number gives
the exact value. A line separates wins from losses: the break-even.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..export.scene import CellGrid, GridCell, Part, Scene

Place = tuple[int, int]  # row and column

TIE = 0.02  # the largest relative difference of a tie
SPEEDUPS = (  # a kind, its greatest value, its meaning
    ("loses much", 0.85, "loses more than 15 %"),
    ("loses", 1 - TIE, "loses"),
    ("ties", 1 + TIE, "ties, within 2 %"),
    ("wins", 1.25, "wins"),
    ("wins more", 1.5, "wins more than 25 %"),
    ("wins much", float("inf"), "wins more than 50 %"),
)


def heat_map(
    title: str, about: str, rows: Sequence[str], columns: Sequence[str],
    panels: Mapping[str, Mapping[Place, float]], said: Mapping[str, str], notes: Sequence[str] = (),
) -> Scene:  # fmt: skip
    """Draw each choice's speed-ups over another one.

    ``said`` has a quiet note for each choice's name.
    """
    parts = []
    for name, values in panels.items():
        cells = {at: GridCell(kind_of(value), f"{value:.2f}×") for at, value in values.items()}
        walls = [*break_even(values)]
        parts.append(Part(name, said[name], [CellGrid(rows, columns, cells, walls=walls)]))
    legend = {kind: words for kind, _, words in SPEEDUPS} | {"wall": "break-even"}
    return Scene(title, about, parts, legend, notes)


def kind_of(value: float) -> str:
    """Return the look of a place."""
    return next(kind for kind, most, _ in SPEEDUPS if value <= most)


def break_even(values: Mapping[Place, float]) -> Iterator[tuple[Place, Place]]:
    """Yield neighbouring places of which one wins and the other does not."""
    for (row, column), value in values.items():
        for other in ((row, column + 1), (row + 1, column)):
            if other in values and (value > 1 + TIE) != (values[other] > 1 + TIE):
                yield (row, column), other
