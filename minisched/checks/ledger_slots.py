"""Future slots: which step and whose row each was given to last, and who reads it."""

from __future__ import annotations

from collections.abc import Sequence

from .leak import Leak
from .ledger_lease import HeldLease
from .ledger_moment import Moment


class SlotBook:
    """A future slot is a step's until another one gets it. Nothing gives one back."""

    def __init__(self, leaks: list[Leak]) -> None:
        self.leaks = leaks
        self.owner: dict[int, tuple[int, HeldLease | None]] = {}  # slot -> step, lease

    def of(self, step: int) -> list[int]:
        """The slots that are still a step's."""
        return [slot for slot, (owner, _) in self.owner.items() if owner == step]

    def bind(
        self,
        step: int,
        leases: Sequence[HeldLease | None],
        slots: Sequence[int],
        reads: Sequence[int],
        now: Moment,
    ) -> None:
        """A step gets ``slots``, row by row, and will read ``reads``, which were others'."""
        for slot in reads:
            giver, lease = self.owner.get(slot, (0, None))
            if leases and (not giver or lease not in leases):
                self._read_wrong(step, slot, giver, lease, now)
        if len(leases) == len(slots):
            self.owner |= {slot: (step, lease) for slot, lease in zip(slots, leases, strict=True)}

    def _read_wrong(
        self, step: int, slot: int, giver: int, lease: HeldLease | None, now: Moment
    ) -> None:
        story = f"step {step} reads future slot {slot}, which no step was given"
        if giver and lease:
            story = (
                f"step {step} reads future slot {slot}, which was given to step {giver} for "
                f"{lease.rid}, who is not in step {step}"
            )
        rid = lease.rid if lease else ""
        self.leaks.append(
            Leak("future slot", f"future slot {slot}", "used", rid, story, now.time, now.slices)
        )
