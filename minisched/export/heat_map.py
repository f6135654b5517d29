"""Heat maps: a figure over two settings, one below the other for each choice, on one scale.

A colour says how good a place is and the number in it says it exactly. Speed-ups are brown where a
choice loses, grey where it ties and green where it wins, and a line is drawn where that turns: the
break-even. Amounts go from pale to dark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .scene import CellGrid, GridCell, Part, Scene

TIE = 0.02  # what is so much faster or slower at most is a tie
SPEEDUPS = (  # a kind, the speed-up up to which a place is of it, and what it means
    ("loses much", 0.85, "loses more than 15 %"),
    ("loses", 1 - TIE, "loses"),
    ("ties", 1 + TIE, "ties, within 2 %"),
    ("wins", 1.25, "wins"),
    ("wins more", 1.5, "wins more than 25 %"),
    ("wins much", float("inf"), "wins more than 50 %"),
)
SHADES = ("least", "low", "middle", "high", "most")


@dataclass(frozen=True)
class HeatPanel:
    """One choice: its values by (row, column), a quiet note, and a sentence on each place."""

    name: str
    note: str
    values: Mapping[tuple[int, int], float]
    about: Mapping[tuple[int, int], str]


def speedup_scene(
    title: str, about: str, rows: Sequence[str], columns: Sequence[str],
    panels: Sequence[HeatPanel], notes: Sequence[str] = (),
) -> Scene:  # fmt: skip
    """Speed-ups over another choice, with the line where they pass 1."""
    parts = []
    for panel in panels:
        cells = {
            at: GridCell(kind_of(value), f"{value:.2f}×", about=panel.about.get(at, ""))
            for at, value in panel.values.items()
        }
        walls = list(break_even(panel.values))
        parts.append(Part(panel.name, panel.note, [CellGrid(rows, columns, cells, walls=walls)]))
    legend = {kind: words for kind, _, words in SPEEDUPS} | {"wall": "break-even"}
    return Scene(title, about, parts, legend, notes)


def amount_scene(
    title: str, about: str, rows: Sequence[str], columns: Sequence[str],
    panels: Sequence[HeatPanel], notes: Sequence[str] = (),
) -> Scene:  # fmt: skip
    """Amounts of any kind, the same shade for the same amount in every panel."""
    every = sorted(value for panel in panels for value in panel.values.values())
    low, high = (every[0], every[-1]) if every else (0.0, 0.0)
    step = (high - low) / len(SHADES)
    parts = []
    for panel in panels:
        cells = {
            at: GridCell(
                SHADES[min(len(SHADES) - 1, int((value - low) / step))] if step else SHADES[0],
                f"{value:.4g}", about=panel.about.get(at, ""),
            )
            for at, value in panel.values.items()
        }  # fmt: skip
        parts.append(Part(panel.name, panel.note, [CellGrid(rows, columns, cells)]))
    legend = {
        shade: f"{low + at * step:.4g} to {low + (at + 1) * step:.4g}"
        for at, shade in enumerate(SHADES)
    }
    return Scene(title, about, parts, legend, notes)


def kind_of(speedup: float) -> str:
    """The look of a place."""
    return next(kind for kind, most, _ in SPEEDUPS if speedup <= most)


def break_even(
    values: Mapping[tuple[int, int], float],
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Neighbouring places of which one wins and the other doesn't."""
    for (row, column), value in values.items():
        for other in ((row, column + 1), (row + 1, column)):
            if other in values and (value > 1 + TIE) != (values[other] > 1 + TIE):
                yield (row, column), other
