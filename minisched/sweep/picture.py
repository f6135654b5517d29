"""A sweep as heat maps: two axes of numbers across and down, a panel for each other choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from ..export.heat_map import HeatPanel, amount_scene, speedup_scene
from ..export.scene import Scene
from .grid import AIMS
from .sweep import Sweep

MOST_PANELS = 12


def picture(sweep: Sweep) -> Scene | None:
    """The speed-up over ``serial`` where that is in the grid, else what the aim is about.

    Means over the seeds and over what did run. None where no axis has numbers, or nothing ran.
    """
    grid = sweep.grid
    numbers = [
        name
        for name, values in grid.axes.items()
        if name != "seed" and all(type(value) in (int, float) for value in values)
    ]
    numbers.sort(key=lambda name: -len(grid.axes[name]))
    if not numbers:
        return None
    across, down = numbers[0], numbers[1] if len(numbers) > 1 else ""
    is_speedup = "serial" in grid.axes.get("loop", ())
    column = "speedup" if is_speedup else AIMS[grid.aim][0]
    others = [name for name in grid.axes if name not in (across, down, "seed")]
    found: dict[tuple[Any, ...], dict[tuple[int, int], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in sweep.table:
        if row[column] is None or (is_speedup and row["loop"] == "serial"):
            continue
        at = (grid.axes[down].index(row[down]) if down else 0, grid.axes[across].index(row[across]))
        found[tuple(row[name] for name in others)][at].append(row[column])
    if not found:
        return None
    values = {key: {at: fmean(some) for at, some in of.items()} for key, of in found.items()}
    panels = [HeatPanel(_named(others, key), _range(of), of, {}) for key, of in values.items()][
        :MOST_PANELS
    ]
    rows = [f"{down} {value:g}" for value in grid.axes[down]] if down else [column]
    columns = [f"{value:g}" for value in grid.axes[across]]
    about = f"{column} of {len(sweep.rows)} cells; across: {across}" + f"; down: {down}" * bool(
        down
    )
    hidden = len(values) - len(panels)
    notes = [f"{hidden} more choices are in sweep.csv."] if hidden else []
    draw = speedup_scene if is_speedup else amount_scene
    return draw(_title(values, others, column), about, rows, columns, panels, notes)


def _named(names: Sequence[str], values: Sequence[Any]) -> str:
    """A panel's choice in words."""
    said = [str(value) if name == "loop" else f"{name} {value}"
            for name, value in zip(names, values, strict=True)]  # fmt: skip
    return ", ".join(said) or "all cells"


def _range(values: Mapping[tuple[int, int], float]) -> str:
    low, high = min(values.values()), max(values.values())
    return f"{low:.4g} to {high:.4g}"


def _title(
    values: Mapping[tuple[Any, ...], Mapping[tuple[int, int], float]],
    names: Sequence[str], column: str,
) -> str:  # fmt: skip
    """Which choice has the most and the least of it, anywhere."""
    every = [(value, key) for key, of in values.items() for value in of.values()]
    (low, worst), (high, best) = (pick(every, key=lambda item: item[0]) for pick in (min, max))
    if worst == best:
        return f"{column} goes from {low:.4g} to {high:.4g}"
    most, least = _named(names, best), _named(names, worst)
    return f"{column} is {high:.4g} at most, with {most}, and {low:.4g} at least, with {least}"
