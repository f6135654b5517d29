"""The future slots as the lessons draw them: what is stored and not yet read has its own fill."""

from __future__ import annotations

from collections.abc import Iterator

from ..export.views import future_map
from ..export.views.future_map import draw_rings, draw_slots
from ..export.views.future_slots import SlotStay, ring_of, tally_of, wraps_of
from ..export.views.page import Page, about_run
from ..export.views.steps import opening
from ..trace import Trace
from .wording import times

NAMES = {
    "promised": "promised to a step that is launched; no token yet",
    "queued": "never used yet",
    "stored": "stored: the token is there",
    "unread": "stored, and not read so far",
    "read": "read by a forward",
    "stale": "read: nobody needs it any more",
    "lapped": "reused: the slot goes to another token",
    "limit": "the counter has come to its limit and wraps",
    "flag-head": "lapped: a forward reads somebody else's token",
}
STYLE = "<style>.box.unread { fill: #8DBBE0 } text.in-unread { fill: #1A1A1A }</style>"


class UnreadStay(SlotStay):
    """A stay whose token counts as stored as long as nobody has read it."""

    @property
    def phases(self) -> Iterator[tuple[str, int, int]]:
        """Promised, stored or unread, stale."""
        for kind, start, end in super().phases:
            yield "unread" if kind == "stale" and not self.reads else kind, start, end


def draw_ring(
    trace: Trace,
    lapped: tuple[int, int] | None = None,
    beyond: tuple[int, int, str] | None = None,
) -> str:
    """``views/future_map.py:view``, in the lessons' words.

    ``lapped`` says in which slot, by the token of which step, somebody's token was replaced;
    ``beyond`` which slot beyond the limit was handed out, to which step and request: it never ran.

    Raises:
        NothingToShow: no step ran, or no future map was used.
    """
    part, shown = opening(trace, future_map.MOST_STEPS)
    stays: list[SlotStay] = [UnreadStay(**vars(stay)) for stay in future_map.need_stays(part)]
    for stay in stays:
        stay.lost.extend(stay.reads[:1] if (stay.slot, stay.step) == lapped else [])
    ring = ring_of(part)
    if beyond:
        slot, step, rid = beyond
        stays.append(
            UnreadStay(slot, rid, step, part.end * 9 // 10, part.end, part.end, sampled=False)
        )
    page = Page(future_map.TITLE, about_run(trace, shown))
    page.add(STYLE)
    if ring:
        draw_rings(page, stays, ring)
    page.heading("Future slots", future_map.heading(ring))
    draw_slots(page, stays, ring, part)
    page.legend(NAMES)
    tally = tally_of(stays)
    lost = f", lapped {tally.lost}" if tally.lost else ""
    page.notes(
        f"slots handed out {tally.allocated}, of these reused {tally.lapped}; read "
        f"{times(tally.resolved, 'time')}{lost}",
    )
    if ring:
        wraps = len(wraps_of(part, stays))
        page.notes(
            f"future_ct wraps at the limit of {ring.limit}, {times(wraps, 'time')} here; the "
            f"buffer has {ring.size} slots"
        )
    return page.finish().replace(": lapped</text>", ": reused</text>")
