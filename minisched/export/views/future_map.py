"""The future slots over time: allocated to a step, stored by it, resolved by the next, lapped."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from math import cos, pi, sin

from ...trace import Trace
from ..state import Stay as Box
from ..svg import char_width
from ..units import ms
from .axes import TimeAxis
from .future_slots import Ring, SlotStay, Tally, ring_of, stays_of, tally_of, wraps_of
from .marks import NothingToShow, short
from .page import EDGE, LEFT, SIGNS, WIDTH, Datum, Page, about_run, band, line, path, rect, svg_text
from .puml_stays import stays_to_puml
from .steps import opening
from .text_page import TextPage

# -- One lane a future slot, over time, as SVG: whose token it is for, and what became of that -----

MOST_HEIGHT, TALLEST, LOWEST = 420, 22, 9
BAR = 3  # pixels that a stored token has at least: the next step mostly reads it at once


def draw_slots(page: Page, stays: list[SlotStay], ring: Ring | None, trace: Trace) -> None:
    """The lanes, what was in them when, and the moments at which the counter wraps."""
    last = max(stay.slot for stay in stays)
    pitch = min(TALLEST, max(LOWEST, MOST_HEIGHT / last))
    x, top = TimeAxis(trace.end), page.top + 6
    for slot in range(1, last + 1):
        y = top + (slot - 1) * pitch
        page.add(band(LEFT, y + 1, EDGE - LEFT, pitch - 2))
        if pitch > LOWEST + 2 or slot % 5 == 1:
            page.add(svg_text(LEFT - 8, y + pitch / 2 + 4, str(slot), "small", "end"))
    page.add(svg_text(20, top + pitch / 2 + 4, "slot", "small"))
    bottom = top + last * pitch
    page.add(*x.grid(top, bottom))
    for stay in stays:
        draw_stay(page, stay, x, top + (stay.slot - 1) * pitch + 2, pitch - 4)
    for lap, time in enumerate(wraps_of(trace, stays) if ring else (), 1):
        page.add(line("limit", x.x(time), top - 6, x.x(time), bottom, lap=lap))
    if ring and last > ring.limit:
        y = top + ring.limit * pitch
        page.add(line("axis", LEFT, y, EDGE, y), svg_text(20, y + 4, "limit", "small faint"))
    page.top = bottom + 2
    page.add(*x.draw(page.top))
    page.top += 26


def draw_stay(page: Page, stay: SlotStay, x: TimeAxis, y: float, height: float) -> None:
    """One token's time in a slot, and the moments at which it is read."""
    whose = f"slot {stay.slot}: the token of {stay.rid} from step {stay.step}"
    where: dict[str, Datum] = {"slot": stay.slot, "rid": stay.rid, "step": stay.step}
    for kind, start, end in stay.phases:
        left, width = x.span(start, end)
        if kind != "stored":
            page.add(rect(kind, left, y, width, height, f"{whose}, {kind}", **where))
    if stay.sampled:
        left, width = x.span(stay.stored, stay.last_read)
        left, width = min(left, EDGE - BAR), max(BAR, width)
        page.add(rect("stored", left, y, width, height, f"{whose}, stored", **where))
    left, width = x.span(stay.promised, stay.stored)
    if len(stay.rid) * char_width(11) + 4 <= width and height >= 12:
        page.add(
            svg_text(left + width / 2, y + height / 2 + 4, stay.rid, "small in-promised", "middle")
        )
    for time in stay.reads:
        kind = "flag-head" if time in stay.lost else "read"
        d = f"M{x.x(time):.1f} {y + height / 2:.1f}{SIGNS[kind]}"
        about = f"{whose}, read at {ms(time)} ms"
        page.add(path(kind, d, about, slot=stay.slot, rid=stay.rid))
    if stay.laps:
        d = f"M{left:.1f} {y + 5:.1f}{SIGNS['lapped']}"
        page.add(path("lapped", d, f"{whose}, in the place of an older one", **where))


# -- The ring as a ring, at a few moments: who has which future slot, and which one comes next -----

MOST_SLOTS, MOST_RINGS = 24, 5
OUTER, INNER = 52, 30  # pixels


def draw_rings(page: Page, stays: list[SlotStay], ring: Ring) -> None:
    """The first batches, and the one with which the counter begins anew."""
    moments = moments_of(stays)
    if ring.limit > MOST_SLOTS or not moments:
        return
    page.heading("The ring", "when a step is launched; clockwise from the top, slots 1 to "
                 f"{ring.limit}; in the middle: the step")  # fmt: skip
    y, pitch = page.top + OUTER + 14, (WIDTH - LEFT) / MOST_RINGS
    for at, (time, step) in enumerate(moments):
        x = LEFT / 2 + (at + 0.5) * pitch
        page.add(svg_text(x, y + 5, str(step), "run", "middle"))
        for slot in range(1, ring.limit + 1):
            _draw_slot(page, stays, slot, ring.limit, time, x, y)
        laps = any(stay.laps for stay in stays if stay.step == step)
        words = f"at {ms(time)} ms{': lapped' if laps else ''}"
        page.add(svg_text(x, y + OUTER + 20, words, "small", "middle", ring=step))
    page.top = y + OUTER + 48


def moments_of(stays: list[SlotStay]) -> list[tuple[int, int]]:
    """When the first three steps, and the first two that lap, were launched: (time, step)."""
    launched = {stay.step: stay.promised for stay in reversed(stays)}
    steps = sorted(launched)
    lapping = min((stay.step for stay in stays if stay.laps), default=0)
    chosen = {*steps[:3], *[step for step in steps if step >= lapping > 0][:2]}
    return [(launched[step], step) for step in sorted(chosen or steps)][:MOST_RINGS]


def _draw_slot(
    page: Page, stays: list[SlotStay], slot: int, count: int, time: int, x: float, y: float
) -> None:
    """One slot's part of the ring, and whose token is promised or stored there."""
    stay = next((s for s in stays if s.slot == slot and s.promised <= time < s.gone), None)
    kind = next((k for k, start, end in stay.phases if start <= time < end), "") if stay else ""
    where = {"slot-of-ring": slot}
    about = f"slot {slot} at {ms(time)} ms: {f'{kind}, {stay.rid}' if stay else 'never used'}"
    page.add(path(f"box {kind or 'queued'}", wedge(slot - 1, count, x, y), about, **where))
    angle = 2 * pi * (slot - 0.5) / count
    middle = (OUTER + INNER) / 2
    room = min(OUTER - INNER, 2 * pi * INNER / count)
    if stay and kind != "stale" and len(stay.rid) * char_width(11) <= room:
        kind = f"small in-{kind}"
        page.add(
            svg_text(x + middle * sin(angle), y - middle * cos(angle) + 4, stay.rid, kind, "middle")
        )


def wedge(at: int, count: int, x: float, y: float) -> str:
    """The outline of one of ``count`` equal parts of a ring around (x, y)."""
    begin, end = 2 * pi * at / count + 0.03, 2 * pi * (at + 1) / count - 0.03
    corners = [
        f"{x + radius * sin(angle):.1f} {y - radius * cos(angle):.1f}"
        for radius, angle in ((OUTER, begin), (OUTER, end), (INNER, end), (INNER, begin))
    ]
    is_large = int(end - begin > pi)
    return (
        f"M{corners[0]}A{OUTER} {OUTER} 0 {is_large} 1 {corners[1]}"
        f"L{corners[2]}A{INNER} {INNER} 0 {is_large} 0 {corners[3]}Z"
    )


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
