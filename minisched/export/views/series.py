"""Counters over time, drawn as steps: a number keeps its value until it changes."""

from __future__ import annotations

from collections.abc import Sequence

from ...trace import Trace
from .axes import TimeAxis, ValueAxis
from .shapes import path

Series = Sequence[tuple[int, int]]  # (time, value), in order of time


def counter(trace: Trace, name: str) -> list[tuple[int, int]]:
    """A counter's values; of several at one moment the last."""
    return list({item.time: item.value for item in trace.counters if item.name == name}.items())


def most(*series: Series) -> int:
    """The highest value."""
    return max((value for one in series for _, value in one), default=0)


def step_line(series: Series, x: TimeAxis, y: ValueAxis, kind: str, about: str) -> str:
    """A line; ``about`` names it."""
    return path(f"line {kind}", _steps(series, x, y), about, series=about)


def step_area(series: Series, x: TimeAxis, y: ValueAxis, kind: str, about: str) -> str:
    """The area between a line and the axis."""
    d = f"M{x.left:.1f} {y.bottom:.1f}{_steps(series, x, y).replace('M', 'L', 1)}V{y.bottom:.1f}Z"
    return path(f"box {kind}", d, about, series=about)


def _steps(series: Series, x: TimeAxis, y: ValueAxis) -> str:
    """From the left edge, where the value is 0 until the first event, to the right one."""
    drawn = [f"M{x.left:.1f} {y.y(0):.1f}"]
    for time, value in series:
        drawn.append(f"H{x.x(time):.1f}V{y.y(value):.1f}")
    return "".join(drawn) + f"H{x.right:.1f}"


def stacked(below: Series, above: Series) -> list[tuple[int, int]]:
    """The sum of two series."""
    sums, values = [], [0, 0]
    events = sorted([(t, 0, v) for t, v in below] + [(t, 1, v) for t, v in above])
    for time, which, value in events:
        values[which] = value
        sums.append((time, sum(values)))
    return list(dict(sums).items())
