"""Scales with their marks: time from left to right, amounts from bottom to top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...trace import Trace
from ..units import exact, tick_step
from .page import EDGE, LEFT, line, path, svg_text


@dataclass(frozen=True)
class TimeAxis:
    """Nanoseconds to pixels."""

    end: int
    start: int = 0
    left: float = LEFT
    right: float = EDGE

    def x(self, time: int) -> float:
        """Where a moment lies, kept inside."""
        inside = min(max(time, self.start), self.end) - self.start
        return self.left + inside * (self.right - self.left) / max(1, self.end - self.start)

    def span(self, start: int, end: int) -> tuple[float, float]:
        """Left edge and width of an interval; at least a pixel, to be seen."""
        left = self.x(start)
        return left, max(1.0, self.x(end) - left)

    @property
    def ticks(self) -> list[int]:
        """The moments that get a number."""
        step = tick_step(max(1, self.end - self.start))
        first = -(-self.start // step) * step
        return list(range(first, self.end + 1, step))

    def grid(self, top: float, bottom: float) -> list[str]:
        """A faint line at every tick."""
        return [line("grid", self.x(at), top, self.x(at), bottom) for at in self.ticks]

    def draw(self, y: float) -> list[str]:
        """The axis itself, in milliseconds, 24 pixels high."""
        drawn = [
            line("axis", self.left, y, self.right, y),
            svg_text(20, y + 18, "time in ms", "small"),
        ]
        for at in self.ticks:
            drawn.append(line("axis", self.x(at), y, self.x(at), y + 5))
            drawn.append(svg_text(self.x(at), y + 18, exact(at), "small", "middle"))
        return drawn


@dataclass(frozen=True)
class ValueAxis:
    """Amounts to pixels, from 0 at the bottom."""

    most: int
    top: float
    bottom: float
    left: float = LEFT
    right: float = EDGE

    def y(self, value: float) -> float:
        """The height of a value."""
        return self.bottom - value * (self.bottom - self.top) / max(1, self.most)

    def draw(self, unit: str) -> list[str]:
        """Numbers and faint lines, with the unit above the numbers."""
        drawn = [svg_text(self.left - 8, self.top - 9, unit, "small faint", "end")]
        for at in range(0, self.most + 1, tick_step(max(1, self.most), 4)):
            kind = "grid" if at else "axis"
            drawn.append(line(kind, self.left, self.y(at), self.right, self.y(at)))
            drawn.append(svg_text(self.left - 8, self.y(at) + 4, str(at), "small", "end"))
        return drawn


# -- Counters over time, drawn as steps: a number keeps its value until it changes -----------------

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
