"""How durations are written in every picture: milliseconds."""

from __future__ import annotations

NANOSECOND, MICROSECOND, MILLISECOND = 1, 1_000, 1_000_000


def ms(nanoseconds: int) -> str:
    """A number of milliseconds for a reader: ``16.4``, ``632.75``, ``1084.2``, ``0.013``."""
    value = nanoseconds / MILLISECOND
    digits = 1 if value >= 1000 else 2 if value >= 10 else 3
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def exact(nanoseconds: int, unit: int = MILLISECOND) -> str:
    """A time in ``unit`` without rounding: for formats that take decimal numbers as times."""
    whole, rest = divmod(nanoseconds, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") if rest else str(whole)


def tick_step(duration: int, most: int = 10) -> int:
    """The distance between the marks of a time axis: 1, 2 or 5 times a power of ten, at most
    ``most`` of them in ``duration``.
    """
    step = 1
    while True:
        for factor in (1, 2, 5):
            if duration <= factor * step * most:
                return factor * step
        step *= 10
