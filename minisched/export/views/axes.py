"""Scales with their marks: time from left to right, amounts from bottom to top."""

from __future__ import annotations

from dataclasses import dataclass

from ..units import exact, tick_step
from .page import EDGE, LEFT
from .shapes import line, text


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
        drawn = [line("axis", self.left, y, self.right, y), text(20, y + 18, "time in ms", "small")]
        for at in self.ticks:
            drawn.append(line("axis", self.x(at), y, self.x(at), y + 5))
            drawn.append(text(self.x(at), y + 18, exact(at), "small", "middle"))
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
        drawn = [text(self.left - 8, self.top - 9, unit, "small faint", "end")]
        for at in range(0, self.most + 1, tick_step(max(1, self.most), 4)):
            kind = "grid" if at else "axis"
            drawn.append(line(kind, self.left, self.y(at), self.right, self.y(at)))
            drawn.append(text(self.left - 8, self.y(at) + 4, str(at), "small", "end"))
        return drawn
