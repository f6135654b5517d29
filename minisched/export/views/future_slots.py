"""Which token was in which future slot when, read from a trace."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...checks.overlap import forwards
from ...trace import Mark, Trace
from .marks import lacking, named, number, word


@dataclass(frozen=True)
class Stay:
    """One token's time in one future slot."""

    slot: int
    rid: str
    step: int  # the step that samples it
    promised: int  # when its step was bound
    stored: int  # when that step's sample had run
    gone: int  # when the slot was promised to the next token, and nobody was to read this one
    reads: list[int] = field(default_factory=list)  # when a forward looked it up

    @property
    def last_read(self) -> int:
        """When it was of use for the last time."""
        return max([self.stored, *self.reads])


def stays_of(trace: Trace) -> list[Stay]:
    """Every stay, from the ``future slots`` marks and the ops of their steps.

    A step may read a slot and get the same one for its own token: it reads before it stores.

    Raises:
        NothingToShow: a mark is not what it should be.
    """
    starts = {item.step: item.start for item in forwards(trace)}
    ends = {item.step: item.end for item in trace.on("forward") if item.name == "sample"}
    rids = {item.step: item.rids for item in trace.on("host") if item.name == "prepare"}
    newest: dict[int, Stay] = {}
    found: list[Stay] = []
    for mark in named(trace, "future slots"):
        step, end = number(mark, "step"), trace.end
        if step not in starts:
            continue  # it never ran, or is cut off
        slots = whole_numbers(mark, "slots")
        if len(slots) != len(rids.get(step, ())):
            raise lacking(mark, "a slot for each request of its step")
        for slot in whole_numbers(mark, "reads"):
            if slot not in newest:
                raise lacking(mark, f"a token in slot {slot}, which it reads")
            newest[slot].reads.append(starts[step])
        for rid, slot in zip(rids[step], slots, strict=True):
            promised = mark.time
            if before := newest.pop(slot, None):
                promised = max(promised, before.last_read)
                found.append(replace(before, gone=promised))
            stored = max(promised, ends.get(step, end))
            newest[slot] = Stay(slot, rid, step, promised, stored, max(end, stored))
    found += newest.values()
    return sorted(found, key=lambda stay: (stay.promised, stay.slot))


def whole_numbers(mark: Mark, name: str) -> list[int]:
    """The numbers in a text.

    Raises:
        NothingToShow: it holds something else.
    """
    parts = word(mark, name).split()
    if not all(part.isdecimal() for part in parts):
        raise lacking(mark, f"{name} as whole numbers")
    return [int(part) for part in parts]
