"""The future slots over time: allocated to a step, stored by it, resolved by the next, reused."""

from __future__ import annotations

from ...trace import Trace
from ..future_slots import Ring, SlotStay, ring_of, stays_of
from ..scene import CellGrid, Data, GridCell, LaneItem, LaneRow, Lanes, Part, Scene, about_run
from ..units import ms
from .marks import NothingToShow, short
from .steps import opening

MOST_STEPS, MOST_SLOTS, MOST_MOMENTS = 36, 24, 5
LEGEND = {
    "promised": "allocated: promised to a step that is launched; no token yet",
    "queued": "never used yet",
    "stored": "stored: its sample has run, the token is there",
    "read": "resolved: a forward reads it",
    "stale": "nobody will read it any more",
    "flag-head": "reused too early: a forward reads somebody else's token",
}


def scene(trace: Trace) -> Scene:
    """The ring when it is first filled and reused, and one lane a future slot.

    Raises:
        NothingToShow: no step ran, or no future map was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (stays := stays_of(part)):
        raise NothingToShow("the trace has no future slots mark: no future map was used.")
    ring = ring_of(part)
    rows = [
        LaneRow(
            f"slot {at}",
            [item for stay in stays if stay.slot == at for item in items_of(stay)],
            "beyond the limit" if ring and at > ring.limit else "",
        )
        for at in range(1, 1 + max(stay.slot for stay in stays))
    ]
    parts = [Part("Future slots", "labels: whose token", [Lanes(rows, part.end)])]
    size = "no ring: a request keeps the slot of its row"
    if ring:
        size = (f"future_ct wraps at future_limit = {ring.limit}; the buffer has {ring.size} "
                "slots, so that a batch never wraps in its middle")  # fmt: skip
        if ring.limit <= MOST_SLOTS:
            note = "when a step is launched, and whose token each slot has then"
            parts.insert(0, Part(f"The ring of {ring.limit}", note, [grid_of(stays, ring)]))
    resolved, lost = sum(len(stay.reads) for stay in stays), sum(len(stay.lost) for stay in stays)
    reused = sum(stay.reuses for stay in stays)
    when = f"{lost} of them somebody else's" if lost else "none of them overwritten before"
    counts = (f"slots allocated {len(stays)}, stored {sum(stay.sampled for stay in stays)}, "
              f"resolved {resolved}, reused {reused}")  # fmt: skip
    counts += f", too early {lost}" * bool(lost)
    return Scene(f"future_map: {resolved} tokens are read on the device, {when}",
                 about_run(trace, shown), parts, LEGEND, [counts, size])  # fmt: skip


def items_of(stay: SlotStay) -> list[LaneItem]:
    """One token's time in a slot, and the moments at which it is read."""
    whose = f"slot {stay.slot}: the token of {stay.rid} from step {stay.step}"
    where: Data = {"slot": stay.slot, "rid": stay.rid, "step": stay.step}
    items = [
        LaneItem(kind, start, end, short(stay.rid, 12) if kind == "promised" else "",
             about=f"{whose}, {kind}", data=where)
        for kind, start, end in stay.phases
    ]  # fmt: skip
    if stay.sampled and stay.last_read == stay.stored:  # read at once, or never
        about = f"{whose}, stored"
        items.append(LaneItem("stored", stay.stored, stay.stored, about=about, data=where))
    for time in stay.reads:
        kind = "flag-head" if time in stay.lost else "read"
        items.append(LaneItem(kind, time, time, about=f"{whose}, read at {ms(time)} ms",
                          data={"slot": stay.slot, "rid": stay.rid}))  # fmt: skip
    return items


def grid_of(stays: list[SlotStay], ring: Ring) -> CellGrid:
    """The ring when its first steps, and the first ones that reuse a slot, were launched: a row
    each, a column a slot.
    """
    launched = {stay.step: stay.promised for stay in reversed(stays)}
    steps, reusing = sorted(launched), {stay.step for stay in stays if stay.reuses}
    chosen = sorted({*steps[:3], *sorted(reusing)[:2]})[:MOST_MOMENTS]
    cells: dict[tuple[int, int], GridCell] = {}
    for row, step in enumerate(chosen):
        time = launched[step]
        for slot in range(1, ring.limit + 1):
            kind, whose = "queued", ""
            for stay in (s for s in stays if s.slot == slot and s.promised <= time < s.gone):
                now = [kind for kind, start, end in stay.phases if start <= time < end]
                kind, whose = (now or [kind])[0], stay.rid if "stale" not in now else ""
            about = f"slot {slot} at {ms(time)} ms: {LEGEND[kind]}"
            data = {"slot-of-ring": slot, "ring": step}
            cells[row, slot - 1] = GridCell(kind, whose, about=about, data=data)
    names = [f"step {step}" + ", reuses" * (step in reusing) for step in chosen]
    return CellGrid(names, [str(slot) for slot in range(1, ring.limit + 1)], cells)
