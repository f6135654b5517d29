"""What each step read from the future map, noted as it was bound: for the words of a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Stored(NamedTuple):
    """Whose token was put into a slot, and by which step."""

    rid: str
    step: int


@dataclass(frozen=True)
class Reading:
    """One row's look into the map: the slot, who had it last, and where in the ids it stands."""

    step: int
    rid: str
    slot: int
    at: int
    own: int  # the step that put the request's newest token there
    found: Stored | None  # whose token was there by then

    @property
    def is_lapped(self) -> bool:
        """Whether it is not the request's own token that was there."""
        return self.found != Stored(self.rid, self.own)


@dataclass
class RingNotes:
    """Reads by (step, request), and what the learner's lines made of the ids of each step."""

    reads: dict[tuple[int, str], Reading] = field(default_factory=dict)
    looked_up: list[tuple[list[int], object]] = field(default_factory=list)  # step by step
    slots: dict[int, Stored] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)  # request id -> step of its newest token
    beyond: tuple[int, int, str] | None = None  # a slot behind the limit, its step and request
    problem: str = ""  # a sentence on what the learner's lines raised

    def note_read(self, step: int, rid: str, slot: int, at: int) -> None:
        """A step will look a slot up: it finds what the steps before have put there."""
        found = self.slots.get(slot)
        self.reads[step, rid] = Reading(step, rid, slot, at, self.newest.get(rid, 0), found)

    def note_slots(self, step: int, rids: Sequence[str], slots: Sequence[int]) -> None:
        """A step will put its tokens there, behind its reads."""
        for rid, slot in zip(rids, slots, strict=True):
            self.slots[slot] = Stored(rid, step)
            self.newest[rid] = step

    def say(self, step: int, rid: str, truth: int) -> str:
        """What a step read for a request, in words; ``truth`` is what it should have been.

        Nothing, if the step read no slot for it.
        """
        read = self.reads.get((step, rid))
        if read is None:
            return ""
        if read.is_lapped:
            return f"Step {step} read slot {read.slot} for request {rid}: {_lapped(read)}"
        given = self.looked_up[step - 1][1] if step <= len(self.looked_up) else None
        made = given[read.at] if isinstance(given, list) and read.at < len(given) else "nothing"
        return (
            f"For request {rid}, step {step} was sent the id {-read.slot}: minus slot {read.slot}, "
            f"where step {read.own} had left {truth}. Your lines made {made} of it."
        )

    def say_token(self, step: int) -> str:
        """Which token of a step the learner's lines changed, in words; or nothing."""
        ids, given = self.looked_up[step - 1] if step <= len(self.looked_up) else ([], None)
        for token, made in zip(ids, given if isinstance(given, list) else [], strict=False):
            if token >= 0 and made != token:
                return (
                    f"Step {step} was sent the id {token}; your lines made {made} of it: {token} "
                    "is a token, and stays what it is."
                )
        return ""


def _lapped(read: Reading) -> str:
    if read.found is None:
        return "nobody has ever put a token there."
    mine = f"step {read.own} had put its token there"
    if read.found.step == read.own:
        return f"{mine}, and so it had request {read.found.rid}'s: two rows with one slot."
    return (
        f"{mine}, but step {read.found.step} has put request {read.found.rid}'s there since. "
        "The slot was lapped: taken again before its token was read."
    )
