"""Points at the ops that did it, by name and step, where a law's sentence alone does not say."""

from __future__ import annotations

from collections.abc import Callable

from ..checks.judge import Verdict
from ..checks.offence import Offence


def at(*places: tuple[str, int], says: str) -> Callable[[Verdict], Offence]:
    """For ``Exhibit.points_at``: these slices in red, each as (its name, its step), and ``says``.

    Of several with one name and step it is the first.

    Raises:
        ValueError: when the run has no such slice.
    """

    def point(verdict: Verdict) -> Offence:
        slices = reversed(verdict.trace.slices)
        known = {(item.name, item.step): item.id for item in slices}
        if missing := [place for place in places if place not in known]:
            name, step = missing[0]
            raise ValueError(f"the run has no {name!r} of step {step} to point at.")
        return Offence(tuple(known[place] for place in places), says)

    return point
