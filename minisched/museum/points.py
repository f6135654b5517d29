"""Points at the ops that did it, by name and step, where a law's sentence alone does not say."""

from __future__ import annotations

from collections.abc import Callable

from ..checks.judge import Verdict
from ..checks.offence import Offence

Place = tuple[str, int] | tuple[str, int, int]  # name, step, and which of several, from 0


def at(*places: Place, says: str) -> Callable[[Verdict], Offence]:
    """For ``Exhibit.points_at``: these slices in red, and what ``says`` the offence.

    Of several with one name and step it is the first, unless the place counts on: the slice
    ``("receive", 0, 2)`` is the third that bears no step's number.

    Raises:
        ValueError: when the run has no such slice.
    """

    def point(verdict: Verdict) -> Offence:
        known: dict[tuple[str, int], list[int]] = {}
        for item in verdict.trace.slices:
            known.setdefault((item.name, item.step), []).append(item.id)
        return Offence(tuple(slice_at(known, *place) for place in places), says)

    return point


def slice_at(known: dict[tuple[str, int], list[int]], name: str, step: int, nth: int = 0) -> int:
    """The id of a slice, of all that are known by name and step.

    Raises:
        ValueError: when there is none.
    """
    found = known.get((name, step), [])
    if nth >= len(found):
        raise ValueError(f"the run has no {name!r} of step {step} to point at.")
    return found[nth]
