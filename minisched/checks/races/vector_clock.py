"""Which moments of a run come before which others, whatever the clock says."""

from __future__ import annotations


class VectorClock(dict[str, int]):
    """How far each lane was when this lane was here, as far as this lane can know.

    Lamport's happens-before: a moment ``n`` of lane ``a`` comes before this one if this one knows
    that ``a`` got as far as ``n``.
    """

    def knows(self, lane: str, moment: int) -> bool:
        """Whether moment ``moment`` of a lane comes before this."""
        return self.get(lane, 0) >= moment

    def join(self, other: VectorClock) -> None:
        """Know from now on what ``other`` knew."""
        for lane, moment in other.items():
            if moment > self.get(lane, 0):
                self[lane] = moment

    def tick(self, lane: str) -> int:
        """The lane's next moment."""
        self[lane] = self.get(lane, 0) + 1
        return self[lane]

    def copy(self) -> VectorClock:
        """As it is now."""
        return VectorClock(self)
