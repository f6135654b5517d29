"""Future slots: which step and whose row each was given to last, and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .lease import HeldLease
from .moment import Moment


class Ask(NamedTuple):
    """What a row has to read: the slot that step ``giver`` got for its lease.

    ``must`` is False where that step has come back: then the host may know the token, and need not.
    """

    lease: HeldLease | None
    giver: int
    must: bool


class SlotRead(NamedTuple):
    """A future slot that a step reads for a lease, or for nobody; ``should`` is the right one.

    ``sentence`` says what is wrong, or nothing. ``slot`` is None where one should have been read.
    """

    step: int
    lease: HeldLease | None
    slot: int | None
    should: int | None
    sentence: str
    moment: Moment


class SlotBook:
    """A future slot is a step's until another one gets it. Nothing gives one back."""

    def __init__(self) -> None:
        self.owner: dict[int, tuple[int, HeldLease | None]] = {}  # slot -> step, lease
        self.given: dict[int, dict[HeldLease | None, int]] = {}  # step -> lease -> slot
        self.misread: list[SlotRead] = []

    def of(self, step: int) -> list[int]:
        """The slots that are still a step's."""
        return [slot for slot, (owner, _) in self.owner.items() if owner == step]

    def bind(
        self,
        step: int,
        asks: Sequence[Ask],
        slots: Sequence[int],
        reads: Sequence[int],
        now: Moment,
    ) -> None:
        """A step gets ``slots``, row by row, and will read ``reads``, which were others'."""
        if asks:
            found = self.reads_of(step, asks, reads, now)
            self.misread += [item for item in found if item.sentence]
        if len(asks) == len(slots):
            given = self.given[step] = {
                ask.lease: slot for ask, slot in zip(asks, slots, strict=True)
            }
            self.owner |= {slot: (step, lease) for lease, slot in given.items()}

    def reads_of(
        self, step: int, asks: Sequence[Ask], reads: Sequence[int], now: Moment
    ) -> list[SlotRead]:
        """Which row reads which slot: a step reads them in the order of its rows."""
        left, found = list(reads), list[SlotRead]()
        must = sum(ask.must for ask in asks)
        for ask in asks:
            should = self.given.get(ask.giver, {}).get(ask.lease)
            may = should is not None and left[:1] == [should] and len(left) > must
            if ask.must or may:
                slot = left.pop(0) if left else None
                found.append(self._judged(step, ask, slot, should, now))
            must -= ask.must
        nobody = Ask(None, 0, False)
        return found + [self._judged(step, nobody, slot, None, now) for slot in left]

    def _judged(
        self, step: int, ask: Ask, slot: int | None, should: int | None, now: Moment
    ) -> SlotRead:
        whose = f" for {ask.lease.rid}" if ask.lease else ""
        right = f"future slot {should}, which step {ask.giver} was given{whose}"
        right = right if should is not None else ""
        story = ""
        if slot is None and right:
            story = f"step {step} reads no future slot{whose}; it should have read {right}"
        elif slot is not None and self.owner.get(slot) != (ask.giver, ask.lease):
            story = f"step {step} reads future slot {slot}{whose}, which {self._owner_of(slot)}"
            if slot == should:
                story += f" since step {ask.giver} was given it{whose}: that token is lost"
            elif right:
                story += f"; it should have read {right}"
        return SlotRead(step, ask.lease, slot, should, story, now)

    def _owner_of(self, slot: int) -> str:
        """Whose a slot is."""
        giver, lease = self.owner.get(slot, (0, None))
        if not giver:
            return "no step was given"
        return f"step {giver} was given" + (f" for {lease.rid}" if lease else "")
