"""How many things were in a state over time: stays, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..state import Stay


def count(stays: Iterable[Stay], *kinds: str) -> list[tuple[int, int]]:
    """(time, how many there are from then on) of these kinds, at every change."""
    delta: Counter[int] = Counter()
    for stay in stays:
        if stay.kind in kinds:
            delta[stay.start] += 1
            delta[stay.end] -= 1
    now, series = 0, []
    for time in sorted(delta):
        if delta[time]:
            now += delta[time]
            series.append((time, now))
    return series
