"""Which token was in which future slot when, read from a trace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from ..checks.overlap import forward_lane, forwards
from ..trace import Trace
from .views.marks import lacking, named, number, numbers


@dataclass(frozen=True)
class SlotStay:
    """One token's time in one future slot."""

    slot: int
    rid: str
    step: int  # the step that samples it
    promised: int  # when its step was bound
    stored: int  # when that step's sample had run
    gone: int  # when the slot was promised to the next token, and nobody was to read this one
    reads: list[int] = field(default_factory=list)  # when a forward looked it up
    lost: list[int] = field(default_factory=list)  # those who looked for an older token
    sampled: bool = True  # its sample has run
    reuses: bool = False  # it took the slot from an older token, on the ring

    @property
    def last_read(self) -> int:
        """When it was of use for the last time."""
        return max([self.stored, *self.reads])

    @property
    def phases(self) -> Iterator[tuple[str, int, int]]:
        """What it is when, as far as that takes time: promised, stored, stale."""
        moments = (self.promised, self.stored, self.last_read, max(self.last_read, self.gone))
        kinds = ("promised", "stored", "stale")
        for kind, (start, end) in zip(kinds, pairwise(moments), strict=True):
            if end > start:
                yield kind, start, end


class Ring(NamedTuple):
    """How many slots there are before the counter wraps, and in the buffer."""

    limit: int
    size: int


def ring_of(trace: Trace) -> Ring | None:
    """The ring's sizes; None where the cells are rows of the request table.

    Raises:
        NothingToShow: the mark is not what it should be.
    """
    for mark in named(trace, "future map"):
        if mark.attrs.get("side") != "prefill":
            return Ring(number(mark, "limit"), number(mark, "size"))
    return None


def stays_of(trace: Trace) -> list[SlotStay]:
    """Every stay, from the ``future slots`` marks and the ops of their steps.

    A step may read a slot and get the same one for its own token: it reads before it stores.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    steps = {item.step: item for item in forwards(trace)}
    lane = forward_lane(trace)
    ends = {item.step: item.end for item in trace.on(lane) if item.name == "sample"}
    on_ring = ring_of(trace) is not None
    end = trace.end
    newest: dict[int, SlotStay] = {}
    found: list[SlotStay] = []
    for mark in named(trace, "future slots"):
        step = number(mark, "step")
        if mark.attrs.get("side") == "prefill" or step not in steps:
            continue  # it never ran, or is cut off
        rids, slots = steps[step].rids, numbers(mark, "slots")
        if len(slots) != len(rids):
            raise lacking(mark, "a slot for each request of its step")
        for slot in numbers(mark, "reads"):
            if slot not in newest:
                raise lacking(mark, f"a token in slot {slot}, which it reads")
            newest[slot].reads.append(steps[step].start)
            if newest[slot].rid not in rids:
                newest[slot].lost.append(steps[step].start)
        for rid, slot in zip(rids, slots, strict=True):
            promised = mark.time
            if before := newest.pop(slot, None):
                promised = max(promised, before.last_read)
                found.append(replace(before, gone=promised))
            stored = max(promised, ends.get(step, end))
            newest[slot] = SlotStay(
                slot, rid, step, promised, stored, max(end, stored),
                sampled=step in ends, reuses=on_ring and before is not None,
            )  # fmt: skip
    found += newest.values()
    return sorted(found, key=lambda stay: (stay.promised, stay.slot))
