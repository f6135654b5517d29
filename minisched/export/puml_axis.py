"""The time axis of a PlantUML timing diagram."""

from __future__ import annotations

from dataclasses import dataclass

from .units import MICROSECOND, MILLISECOND, NANOSECOND, exact, tick_step

WIDTH = 860  # pixels
UNITS = {"milliseconds": MILLISECOND, "microseconds": MICROSECOND, "nanoseconds": NANOSECOND}


@dataclass(frozen=True)
class Axis:
    """The time axis, ``duration`` nanoseconds long."""

    duration: int

    @property
    def scale(self) -> float:
        """Pixels a nanosecond."""
        return WIDTH / self.duration

    @property
    def tick(self) -> int:
        """Nanoseconds from tick to tick."""
        return tick_step(self.duration, most=14)

    @property
    def unit(self) -> str:
        """The largest unit of which a tick is a whole number."""
        return next(name for name, unit in UNITS.items() if self.tick % unit == 0)

    def at(self, time: int) -> str:
        """A time since the view's start, as the diagram writes it."""
        return exact(time, UNITS[self.unit])
