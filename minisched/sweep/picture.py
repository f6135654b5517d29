"""A sweep as heat maps: two axes of numbers across and down, a panel for each other choice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from ..export.heat_map import Place, heat_map
from ..export.scene import Scene
from .grid import AIMS
from .sweep import Sweep

MOST_PANELS = 12


def picture(sweep: Sweep) -> Scene | None:
    """Draw the speed-up over ``serial`` if the grid has it, otherwise the aim's column.

    The figures are means over the seeds. None if no axis has numbers, or no cell ran.
    """
    axes = sweep.grid.axes
    numbers = [
        name
        for name, values in axes.items()
        if name != "seed" and all(type(value) in (int, float) for value in values)
    ]
    if not numbers:
        return None
    across, down, *_ = [*sorted(numbers, key=lambda name: -len(axes[name])), ""]
    is_speedup = "serial" in axes.get("loop", ())
    column = "speedup" if is_speedup else AIMS[sweep.grid.aim][0]
    others = [name for name in axes if name not in (across, down, "seed")]
    values: dict[str, dict[Place, float]] = defaultdict(dict)
    for row in sweep.means():
        if row[column] is not None and not (is_speedup and row["loop"] == "serial"):
            at = axes[down].index(row[down]) if down else 0, axes[across].index(row[across])
            values[named(others, row)][at] = row[column]
    if not values:
        return None
    every = [(value, name) for name, of in values.items() for value in of.values()]
    (low, worst), (high, best) = (pick(every, key=lambda item: item[0]) for pick in (min, max))
    title = f"{column} goes from {low:.4g} to {high:.4g}"
    if worst != best:
        title = f"{column} is {high:.4g} at most, with {best}, and {low:.4g} at least, with {worst}"
    shown = dict([*values.items()][:MOST_PANELS])
    hidden = len(values) - len(shown)
    return heat_map(
        title,
        f"{column} of {len(sweep.rows)} cells; across: {across}" + f"; down: {down}" * bool(down),
        [f"{down} {value:g}" for value in axes[down]] if down else [column],
        [f"{value:g}" for value in axes[across]],
        shown,
        {name: f"{min(of.values()):.4g} to {max(of.values()):.4g}" for name, of in shown.items()},
        is_speedup,
        [f"{hidden} more choices are in sweep.csv."] if hidden else [],
    )


def named(names: Sequence[str], row: Any) -> str:
    """Write a panel's choice in words."""
    said = (str(row[name]) if name == "loop" else f"{name} {row[name]}" for name in names)
    return ", ".join(said) or "all cells"
