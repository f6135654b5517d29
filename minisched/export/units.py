"""The form of durations in every picture: milliseconds."""

from __future__ import annotations

from typing import NamedTuple

from ..checks.overlap import OverlapReport
from ..trace.sides import PAIR

NANOSECOND, MICROSECOND, MILLISECOND = 1, 1_000, 1_000_000


def ms(nanoseconds: int) -> str:
    """Return a number of milliseconds: ``16.4``, ``632.75``, ``1084.2``, ``0.013``."""
    value = nanoseconds / MILLISECOND
    digits = 1 if value >= 1000 else 2 if value >= 10 else 3
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def brief_ms(nanoseconds: int) -> str:
    """Return the milliseconds for a box: with one digit after the point, from 1 ms on."""
    is_long = nanoseconds >= MILLISECOND
    return f"{nanoseconds / MILLISECOND:.1f} ms" if is_long else f"{ms(nanoseconds)} ms"


def exact(nanoseconds: int, unit: int = MILLISECOND) -> str:
    """Return a time in ``unit`` without rounding, for formats with decimal times."""
    whole, rest = divmod(nanoseconds, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)


def tick_step(duration: int, most: int = 10) -> int:
    """Return the distance between the ticks of a time axis.

    It is 1, 2 or 5 times a power of ten, with at most ``most`` ticks in ``duration``.
    """
    step = 1
    while True:
        for factor in (1, 2, 5):
            if duration <= factor * step * most:
                return factor * step
        step *= 10


# -- The names and units of counters: one table for every reader -----------------------------------

UNITS = {
    "waiting": "requests", "running": "requests", "kv used": "tokens", "kv cached": "tokens",
    "new token ratio": "ratio", "active memory": "bytes", "cache memory": "bytes",
}  # fmt: skip
NEXT = "future slots"  # the ring's counter: the place of the next token
THOUSANDTHS = frozenset({"new token ratio"})  # recorded in thousandths (``worker/recording.py``)


class Counted(NamedTuple):
    """A counter for a reader; of a pair of schedulers its name begins with a side."""

    title: str
    unit: str
    scale: int  # divisor of a recorded value

    def value(self, recorded: int) -> int | float:
        """Return the value in its unit."""
        return recorded / self.scale if self.scale > 1 else recorded


def counted(name: str) -> Counted:
    """Return a counter's title and unit; an unknown one is shown as it is."""
    side, _, own = name.partition(" ")
    plain = own if side in PAIR else name
    title = name.replace(NEXT, "next future slot") if plain == NEXT else name
    return Counted(title, UNITS.get(plain, ""), 1000 if plain in THOUSANDTHS else 1)


# -- The device's busy share, in the words of every picture ----------------------------------------


def busy(report: OverlapReport) -> str:
    """Return ``device busy 98 %``; of several devices the mean, marked as such."""
    mean = f" (mean of {report.devices} devices)" if report.devices > 1 else ""
    return f"device busy {report.device_busy_percent:.0f} %{mean}"
