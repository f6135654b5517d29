"""What the steps of a run tell: how far each overlaps with the one before, in words."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..units import ms
from .steps_rows import StepRow


def together(before: StepRow, row: StepRow) -> int:
    """Nanoseconds in which two steps were both on their way."""
    return max(0, min(before.end, row.end) - max(before.start, row.start))


def early(before: StepRow, row: StepRow) -> int:
    """Nanoseconds by which the host began a step before the device was done with the one before."""
    return before.device_span[1] - row.start


def rhythm(rows: Sequence[StepRow]) -> str:
    """One sentence on all of them, with the least and the most where they differ."""
    sides = {row.side: [other for other in rows if other.side == row.side] for row in rows}
    pairs = [pair for mine in sides.values() for pair in pairwise(mine)]
    done = "the device is done with the one above"
    if len(sides) > 1:
        done = "its own device is done with the step before"
    ahead = sorted(time for time in (early(*pair) for pair in pairs) if time > 0)
    if not pairs:
        return "one step"
    if not ahead:
        return f"{'each' if len(sides) > 1 else 'the'} host begins a step only when {done}"
    every = "a step" if len(ahead) == len(pairs) else f"{len(ahead)} of these {len(pairs)} steps"
    times = " to ".join(dict.fromkeys((ms(ahead[0]), ms(ahead[-1]))))
    if len(sides) > 1:
        return f"a host begins {every} {times} ms before {done}"
    return f"the host begins {every} {times} ms before {done}"
