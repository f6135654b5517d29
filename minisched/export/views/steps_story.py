"""What the steps of a run tell: how far each overlaps with the one before, in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..units import ms
from .steps_rows import Row


def together(before: Row, row: Row) -> int:
    """Nanoseconds in which two steps were both on their way."""
    return max(0, min(before.end, row.end) - max(before.start, row.start))


def early(before: Row, row: Row) -> int:
    """Nanoseconds by which the host began a step before the device was done with the one before."""
    return before.device_span[1] - row.start


def rhythm(rows: Sequence[Row]) -> str:
    """One sentence on all of them, with the least and the most where they differ."""
    pairs = [(before, row) for before, row in pairwise(rows) if before.side == row.side]
    ahead = sorted(time for time in (early(*pair) for pair in pairs) if time > 0)
    if not pairs:
        return "one step"
    if not ahead:
        return "the host begins a step only when the device is done with the one above"
    every = "a step" if len(ahead) == len(pairs) else f"{len(ahead)} of these {len(pairs)} steps"
    times = " to ".join(dict.fromkeys((ms(ahead[0]), ms(ahead[-1]))))
    return f"the host begins {every} {times} ms before the device is done with the one above"
