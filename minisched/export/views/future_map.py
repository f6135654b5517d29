"""The future slots over time: allocated to a step, stored by it, resolved by the next, lapped."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from ...trace import Trace
from ..state import Stay as Box
from ..units import ms
from .future_lanes import draw_slots
from .future_ring import draw_rings
from .future_slots import Ring, SlotStay, Tally, ring_of, stays_of, tally_of, wraps_of
from .marks import NothingToShow
from .page import Page, about_run
from .puml_stays import stays_to_puml
from .steps import opening
from .text_page import TextPage
from .wording import short

MOST_STEPS, MOST_PUML_STEPS = 36, 14
TITLE = "future_map: tokens on their way to the next step"
NAMES = {
    "promised": "allocated: promised to a step that is launched; no token yet",
    "queued": "never used yet",
    "stored": "stored: its sample has run, the token is there",
    "read": "resolved: a forward reads it",
    "stale": "nobody will read it any more",
    "lapped": "lapped: the slot goes to another token",
    "limit": "the counter has come to its limit and wraps",
    "flag-head": "lapped too early: a forward reads somebody else's token",
}


def view(trace: Trace) -> str:
    """The ring at its first laps, and one lane a future slot.

    Raises:
        NothingToShow: no step ran, or no future map was used.
    """
    part, shown = opening(trace, MOST_STEPS)
    stays, ring = need_stays(part), ring_of(part)
    page = Page(TITLE, about_run(trace, shown))
    if ring:
        draw_rings(page, stays, ring)
    page.heading("Future slots", heading(ring))
    draw_slots(page, stays, ring, part)
    page.legend(NAMES)
    if any(stay.reads and min(stay.reads) == stay.stored for stay in stays):
        page.notes(AT_ONCE)
    page.notes(*summary(tally_of(stays), ring, len(wraps_of(part, stays))))
    return page.finish()


def text(trace: Trace) -> str:
    """The same lanes for a terminal, and a table of what each step does to the slots.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_STEPS)
    stays, ring = need_stays(part), ring_of(part)
    page = TextPage(TITLE, about_run(trace, shown))
    page.heading("Future slots", heading(ring))
    rows = rows_of(stays)
    if ring:
        wraps = [Box("", "limit", time, time) for time in wraps_of(part, stays)]
        rows.insert(0, ("wraps", wraps))
    page.lanes(rows, part.end)
    occurring = {box.kind for _, boxes in rows for box in boxes}
    page.legend({kind: words for kind, words in NAMES.items() if kind in occurring})
    page.heading("Step by step", "slots, each with whose token it is for")
    page.table(
        ("step", "launched, ms", "allocates", "stored, ms", "resolved, ms", "laps"), table_of(stays)
    )
    page.write("", *summary(tally_of(stays), ring, len(wraps_of(part, stays))))
    return page.finish()


def puml(trace: Trace) -> str:
    """The lanes as a PlantUML timing diagram, of fewer steps.

    Raises:
        NothingToShow: as ``view``.
    """
    part, shown = opening(trace, MOST_PUML_STEPS)
    stays = [seen(stay, part.end // 120) for stay in need_stays(part)]
    rows = [(name, [box for box in boxes if box.kind in PHASES]) for name, boxes in rows_of(stays)]
    names = {kind: NAMES[kind] for kind in PHASES}
    wraps = enumerate(wraps_of(part, stays), 1)
    flags = [(time, f"wrap {lap}") for lap, time in wraps]
    return stays_to_puml(f"{TITLE} ({shown})", rows, part.end, names, flags)


def seen(stay: SlotStay, least: int) -> SlotStay:
    """A stay whose token is stored for long enough to be seen, where its slot is free so long."""
    until = min(stay.stored + least, max(stay.last_read, stay.gone))
    return replace(stay, reads=[*stay.reads, until]) if stay.sampled else stay


AT_ONCE = "a thin stored: the next forward, in the stream right behind the sample, reads it at once"
PHASES = ("promised", "stored", "stale")


def need_stays(trace: Trace) -> list[SlotStay]:
    """Every stay.

    Raises:
        NothingToShow: there is none.
    """
    if not (stays := stays_of(trace)):
        raise NothingToShow("the trace has no future slots mark: no future map was used.")
    return stays


def heading(ring: Ring | None) -> str:
    """Which slots these are."""
    if ring is None:
        return "one for each row of the request table; labels: whose token"
    return f"a ring of {ring.limit}; labels: whose token"


def summary(tally: Tally, ring: Ring | None, wraps: int) -> tuple[str, str]:
    """What happened, in numbers, and how large the ring is; the same in every form."""
    counts = (
        f"slots allocated {tally.allocated}, stored {tally.stored}, resolved {tally.resolved}, "
        f"lapped {tally.lapped}{f', too early {tally.lost}' if tally.lost else ''}"
    )
    if ring is None:
        return counts, "no ring: a request keeps the slot of its row, so there is nothing to lap"
    return counts, (
        f"future_ct wraps at future_limit = {ring.limit}, {wraps} times here; the buffer has "
        f"{ring.size} slots, so that a batch never wraps in its middle"
    )


def rows_of(stays: list[SlotStay]) -> list[tuple[str, list[Box]]]:
    """Each slot's name, and what was in it: its phases, and a moment for each look-up."""
    rows: dict[int, list[Box]] = {slot: [] for slot in range(1, 1 + max(s.slot for s in stays))}
    for stay in stays:
        boxes = rows[stay.slot]
        for kind, start, end in stay.phases:
            label = short(stay.rid, 12) if kind == "promised" else ""
            boxes.append(Box("", kind, start, end, label, stay.rid))
        if stay.sampled and stay.last_read == stay.stored:
            boxes.append(Box("", "stored", stay.stored, stay.stored, rid=stay.rid))
        for time in stay.reads:
            kind = "flag-head" if time in stay.lost else "read"
            boxes.append(Box("", kind, time, time, rid=stay.rid))
    return [(f"slot {slot}", boxes) for slot, boxes in rows.items()]


def table_of(stays: list[SlotStay]) -> list[tuple[object, ...]]:
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
