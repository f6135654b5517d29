"""The future slots over time: allocated to a step, stored by it, resolved by the next, lapped."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from ...trace import Trace
from ..scene import (
    CellGrid,
    Data,
    GridCell,
    LaneItem,
    LaneRow,
    Lanes,
    Part,
    Scene,
    TextTable,
    about_run,
)
from ..units import ms
from .future_slots import Ring, SlotStay, ring_of, stays_of, wraps_of
from .marks import NothingToShow, short
from .steps import opening

MOST_STEPS, MOST_SLOTS, MOST_MOMENTS = 36, 24, 5
LEGEND = {
    "promised": "allocated: promised to a step that is launched; no token yet",
    "queued": "never used yet",
    "stored": "stored: its sample has run, the token is there",
    "read": "resolved: a forward reads it",
    "stale": "nobody will read it any more",
    "lapped": "lapped: the slot goes to another token",
    "flag": "the counter has come to its limit and wraps",
    "flag-head": "lapped too early: a forward reads somebody else's token",
}
HEADS = ("step", "launched, ms", "allocates", "stored, ms", "resolved, ms", "laps")


def scene(trace: Trace) -> Scene:
    """The ring at its first laps, and one lane a future slot.

    Raises:
        NothingToShow: no step ran, or no future map was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    if not (stays := stays_of(part)):
        raise NothingToShow("the trace has no future slots mark: no future map was used.")
    ring = ring_of(part)
    resolved, lapped = sum(len(stay.reads) for stay in stays), sum(stay.laps for stay in stays)
    lost = sum(len(stay.lost) for stay in stays)
    wraps = wraps_of(part, stays) if ring else []
    flags = [LaneItem("flag", time, time, f"wrap {lap}", data={"lap": lap})
             for lap, time in enumerate(wraps, 1)]  # fmt: skip
    slots = range(1, 1 + max(stay.slot for stay in stays))
    rows = [
        LaneRow(
            f"slot {at}",
            [piece for stay in stays if stay.slot == at for piece in items_of(stay)],
            "beyond the limit" if ring and at > ring.limit else "",
        )
        for at in slots
    ]
    parts = [Part("Future slots", "labels: whose token", [Lanes(rows, part.end, flags=flags)])]
    if ring and ring.limit <= MOST_SLOTS and (moments := moments_of(stays)):
        note = "when a step is launched, and whose token each slot has then"
        parts.insert(0, Part(f"The ring of {ring.limit}", note, [grid_of(stays, ring, moments)]))
    lines = TextTable(HEADS, table_of(stays))
    parts.append(Part("Step by step", "slots, each with whose token it is for", [lines]))
    early, stored = f", too early {lost}" if lost else "", sum(stay.sampled for stay in stays)
    counts = (f"slots allocated {len(stays)}, stored {stored}, resolved {resolved}, "
              f"lapped {lapped}{early}")  # fmt: skip
    size = "no ring: a request keeps the slot of its row, so there is nothing to lap"
    if ring:
        size = (
            f"future_ct wraps at future_limit = {ring.limit}, {len(wraps)} times here; the buffer "
            f"has {ring.size} slots, so that a batch never wraps in its middle"
        )
    when = f"{lost} of them somebody else's" if lost else "none of them lapped before"
    title = f"future_map: {resolved} tokens are read on the device, {when}"
    return Scene(title, about_run(trace, shown), parts, LEGEND, [counts, size])


def items_of(stay: SlotStay) -> list[LaneItem]:
    """One token's time in a slot, and the moments at which it is read."""
    whose = f"slot {stay.slot}: the token of {stay.rid} from step {stay.step}"
    where: Data = {"slot": stay.slot, "rid": stay.rid, "step": stay.step}
    spans = [
        LaneItem(kind, start, end, short(stay.rid, 12) if kind == "promised" else "",
             about=f"{whose}, {kind}", data=where)
        for kind, start, end in stay.phases
    ]  # fmt: skip
    if stay.sampled and stay.last_read == stay.stored:  # read at once, or never
        spans.append(
            LaneItem("stored", stay.stored, stay.stored, about=f"{whose}, stored", data=where)
        )
    for time in stay.reads:
        kind = "flag-head" if time in stay.lost else "read"
        spans.append(LaneItem(kind, time, time, about=f"{whose}, read at {ms(time)} ms",
                          data={"slot": stay.slot, "rid": stay.rid}))  # fmt: skip
    if stay.laps:
        about = f"{whose}, in the place of an older one"
        spans.append(LaneItem("lapped", stay.promised, stay.promised, about=about, data=where))
    return spans


def moments_of(stays: Sequence[SlotStay]) -> list[tuple[int, int]]:
    """When the first three steps, and the first two that lap, were launched: (time, step)."""
    launched = {stay.step: stay.promised for stay in reversed(stays)}
    steps = sorted(launched)
    lapping = min((stay.step for stay in stays if stay.laps), default=0)
    chosen = {*steps[:3], *[step for step in steps if step >= lapping > 0][:2]}
    return [(launched[step], step) for step in sorted(chosen or steps)][:MOST_MOMENTS]


def grid_of(stays: Sequence[SlotStay], ring: Ring, moments: list[tuple[int, int]]) -> CellGrid:
    """The ring at a few moments: a row each, a column a slot."""
    cells: dict[tuple[int, int], GridCell] = {}
    for row, (time, step) in enumerate(moments):
        for slot in range(1, ring.limit + 1):
            here = (s for s in stays if s.slot == slot and s.promised <= time < s.gone)
            stay = next(here, None)
            phases = stay.phases if stay else ()
            kind = next((k for k, start, end in phases if start <= time < end), "queued")
            whose = stay.rid if stay and kind != "stale" else ""
            about = f"slot {slot} at {ms(time)} ms: {f'{kind}, {whose}' if stay else 'never used'}"
            data = {"slot-of-ring": slot, "ring": step}
            cells[row, slot - 1] = GridCell(kind, whose, about=about, data=data)
    names = [f"step {step}" + ", laps" * any(s.laps and s.step == step for s in stays)
             for _, step in moments]  # fmt: skip
    return CellGrid(names, [str(slot) for slot in range(1, ring.limit + 1)], cells)


def table_of(stays: Sequence[SlotStay]) -> list[tuple[object, ...]]:
    """A line for each step: its slots, when they are stored and resolved, how many it laps."""
    rows: list[tuple[object, ...]] = []
    for step, group in groupby(sorted(stays, key=lambda s: (s.step, s.slot)), lambda s: s.step):
        mine = list(group)
        slots = short(" ".join(f"{stay.slot}:{stay.rid}" for stay in mine), 50)
        stored = ms(mine[0].stored) if mine[0].sampled else "-"
        read = ms(min(reads)) if (reads := [time for s in mine for time in s.reads]) else "-"
        laps = sum(stay.laps for stay in mine)
        rows.append((step, ms(min(s.promised for s in mine)), slots, stored, read, laps or ""))
    return rows
