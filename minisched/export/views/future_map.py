"""The future slots over time: allocated to a step, stored by it, resolved by the next, reused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ...checks.overlap import forward_lane, forwards
from ...trace import Trace
from ..scene import Data, LaneItem, LaneRow, Lanes, Part, Scene, about_run
from .marks import NothingToShow, lacking, named, number, numbers, short
from .steps import opening

MOST_STEPS = 36
LEGEND = {
    "promised": "allocated: promised to a step that is launched; no token yet",
    "stored": "stored: its sample has run, the token is there",
    "read": "resolved: a forward reads it",
    "stale": "no step will read it any more",
    "flag-head": "reused too early: a forward reads the token of another request",
}


def scene(trace: Trace) -> Scene:
    """Draw a lane for each future slot."""
    part, shown = opening(trace, MOST_STEPS)
    if not (stays := stays_of(part)):
        raise NothingToShow("the trace has no future slots mark: no future map was used.")
    limit, size = ring_of(part)
    lanes: dict[int, list[LaneItem]] = {at: [] for at in range(1, 1 + max(s.slot for s in stays))}
    for stay in stays:
        data: Data = {"slot": stay.slot, "rid": stay.rid, "step": stay.step}
        phases = [*stay.phases]
        if stay.sampled and stay.last_read == stay.stored:  # read immediately, or never
            phases.append(("stored", stay.stored, stay.stored))
        lanes[stay.slot] += [
            LaneItem(kind, start, min(end, part.end),
                     short(stay.rid, 12) if kind == "promised" else "", data=data)
            for kind, start, end in phases
        ]  # fmt: skip
        lanes[stay.slot] += [
            LaneItem("flag-head" if time in stay.lost else "read", time, time,
                     data={"slot": stay.slot, "rid": stay.rid})
            for time in stay.reads
        ]  # fmt: skip
    rows = [LaneRow(f"slot {at}", items, "beyond the limit" if 0 < limit < at else "")
            for at, items in lanes.items()]  # fmt: skip
    resolved, lost = sum(len(stay.reads) for stay in stays), sum(len(stay.lost) for stay in stays)
    when = f"{lost} of them of another request" if lost else "none of them overwritten before"
    counts = f"slots allocated {len(stays)}, stored {sum(stay.sampled for stay in stays)}, "
    counts += f"resolved {resolved}, reused {sum(stay.reuses for stay in stays)}"
    counts += f", too early {lost}" * bool(lost)
    ring = (f"future_ct wraps at future_limit = {limit}; the buffer has {size} slots, so that a "
            "batch never wraps in its middle")  # fmt: skip
    return Scene(
        f"future_map: {resolved} tokens are read on the device, {when}",
        about_run(trace, shown),
        [Part("Future slots", "labels: the request of each token", [Lanes(rows, part.end)])],
        LEGEND,
        [counts, ring if limit else "no ring: a request keeps the slot of its row"],
    )


def ring_of(trace: Trace) -> tuple[int, int]:
    """Return the slots before the counter wraps, and those of the buffer.

    Both are zero where the cells are rows of the request table.
    """
    for mark in named(trace, "future map"):
        if mark.attrs.get("side") != "prefill":
            return number(mark, "limit"), number(mark, "size")
    return 0, 0


# -- The tokens in future slots over time, read from a trace ---------------------------------------


@dataclass(frozen=True)
class SlotStay:
    """One token's time in one future slot."""

    slot: int
    rid: str
    step: int  # the step that samples it
    promised: int  # time when its step was bound
    stored: int  # time when that step's sample had run
    gone: int  # time when the slot was promised to the next token, with no read left
    reads: list[int] = field(default_factory=list)  # times of forwards that read it
    lost: list[int] = field(default_factory=list)  # times of reads for an older token
    sampled: bool = True  # its sample has run
    reuses: bool = False  # it took the slot from an older token, on the ring

    @property
    def last_read(self) -> int:
        """Return the time of its last read."""
        return max([self.stored, *self.reads])

    @property
    def phases(self) -> Iterator[tuple[str, int, int]]:
        """Yield its states that take time, with their times: promised, stored, stale."""
        moments = (self.promised, self.stored, self.last_read, max(self.last_read, self.gone))
        kinds = ("promised", "stored", "stale")
        for kind, (start, end) in zip(kinds, pairwise(moments), strict=True):
            if end > start:
                yield kind, start, end


def stays_of(trace: Trace) -> list[SlotStay]:
    """Return every stay, from the ``future slots`` marks and the ops of their steps.

    A step may read a slot and get the same one for its own token, because it reads before it
    stores.
    """
    steps, (limit, _) = {item.step: item for item in forwards(trace)}, ring_of(trace)
    end = trace.end + 1  # such a stay is part of the state at the last moment, too
    sampled = {item.step: item.end for item in trace.on(forward_lane(trace))
               if item.name == "sample"}  # fmt: skip
    newest, found = dict[int, SlotStay](), list[SlotStay]()
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
            stored = max(promised, sampled.get(step, end))
            newest[slot] = SlotStay(
                slot, rid, step, promised, stored, max(end, stored),
                sampled=step in sampled, reuses=limit > 0 and before is not None,
            )  # fmt: skip
    found += newest.values()
    return sorted(found, key=lambda stay: (stay.promised, stay.slot))
