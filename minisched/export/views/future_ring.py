"""The ring as a ring, at a few moments: who has which future slot, and which one comes next."""

from __future__ import annotations

from math import cos, pi, sin

from ..svg_style import char_width
from ..units import ms
from .future_slots import Ring, SlotStay
from .page import LEFT, WIDTH, Page
from .shapes import path, text

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
        page.add(text(x, y + 5, str(step), "run", "middle"))
        for slot in range(1, ring.limit + 1):
            _draw_slot(page, stays, slot, ring.limit, time, x, y)
        laps = any(stay.laps for stay in stays if stay.step == step)
        words = f"at {ms(time)} ms{': lapped' if laps else ''}"
        page.add(text(x, y + OUTER + 20, words, "small", "middle", ring=step))
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
            text(x + middle * sin(angle), y - middle * cos(angle) + 4, stay.rid, kind, "middle")
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
