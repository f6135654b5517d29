"""The future slots as cells: stored by a step, read by the next one, and reused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ...checks.overlap import forward_lane, forwards
from ...trace import Trace
from ..scene import CellGrid, Data, GridCell, Part, Scene, about_run
from .marks import NothingToShow, first_of, first_rows, lacking, named, number, numbers, short
from .steps import opening

MOST_STEPS, MOST_SLOTS = 16, 12
LEGEND = {
    "stored": "the step stores the token of this request here",
    "unread": "the token waits",
    "resolved": "the step reads it, without the host",
    "lacking": "the step reads the token of another request",
}


def scene(trace: Trace) -> Scene:
    """Draw a row for each future slot, and a column for each step.

    A step reads before it stores, so a cell that is stored again may have been read in its step.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (stays := stays_of(part)):
        raise NothingToShow("the trace has no future slots mark: no future map was used.")
    (limit, size), starts = ring_of(part), {item.start: item.step for item in forwards(part)}
    steps = {step: at for at, step in enumerate(sorted(starts.values()))}
    cells, slots = dict[tuple[int, int], GridCell](), max(stay.slot for stay in stays)
    for stay in stays:
        row, rid = stay.slot - 1, short(stay.rid, 8)
        data: Data = {"slot": stay.slot, "rid": stay.rid, "step": stay.step}
        used = sorted({*stay.reads, *stay.lost})
        first, last = steps[stay.step], steps[starts[used[-1]]] if used else steps[stay.step]
        read_then = cells.get((row, first))
        below = f"read {read_then.text}" if read_then and read_then.kind == "resolved" else ""
        kind = "stored" if stay.sampled else "queued"
        if read_then and read_then.kind == "lacking":
            kind = "lacking"
        cells[row, first] = GridCell(kind, rid, below, "stored by its step", data=data)
        for at in range(first + 1, last):
            cells[row, at] = GridCell("unread", rid, about=f"{rid}'s token waits")
        for time in used:
            data = {"slot": stay.slot, "rid": stay.rid, "source": stay.step}
            read = "lacking" if time in stay.lost else "resolved"
            cells[row, steps[starts[time]]] = GridCell(read, rid, data=data)
    names = [f"slot {at}" + " (beyond the limit)" * (0 < limit < at) for at in range(1, slots + 1)]
    cut = first_of(MOST_SLOTS, slots, "slot")
    grid = CellGrid(
        names[:MOST_SLOTS], [f"step {step}" for step in steps],
        first_rows(MOST_SLOTS, cells),
    )  # fmt: skip
    resolved, lost = sum(len(stay.reads) for stay in stays), sum(len(stay.lost) for stay in stays)
    when = (
        f"{lost} of them of another request" if lost else "each before its slot is stored to again"
    )
    counts = f"slots allocated {len(stays)}, stored {sum(stay.sampled for stay in stays)}, "
    counts += f"resolved {resolved}, reused {sum(stay.reuses for stay in stays)}"
    counts += f", too early {lost}" * bool(lost)
    ring = (f"future_ct wraps at future_limit = {limit}; the buffer has {size} slots, so that a "
            "batch never wraps in its middle")  # fmt: skip
    return Scene(
        f"future_map: {resolved} tokens are read on the device, {when}",
        about_run(trace, shown, cut),
        [Part("Future slots", "a step reads its cells before it stores into them", [grid])],
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
    never_filled = set[int]()  # by a step that never ran; one after it may read the slot
    for mark in named(trace, "future slots"):
        step = number(mark, "step")
        if mark.attrs.get("side") == "prefill":
            continue  # it has a ring of its own
        if step not in steps:  # it never ran, or is cut off
            never_filled.update(numbers(mark, "slots"))
            continue
        rids, slots = steps[step].rids, numbers(mark, "slots")
        if len(slots) != len(rids):
            raise lacking(mark, "a slot for each request of its step")
        for slot in numbers(mark, "reads"):
            if slot not in newest:
                if slot in never_filled:
                    continue
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
