"""Which token was in which future slot of the ``FutureMap``, promised, stored or stale."""

from __future__ import annotations

from collections.abc import Iterator

from ...trace import Trace
from ..views.future_slots import SlotStay as Token
from ..views.future_slots import stays_of
from .side import shown_side
from .stay import Panel, Stay

WORDS = {
    "promised": "promised to step {step}, which has not sampled it yet",
    "stored": "stored by step {step}; somebody will still read it",
    "stale": "left by step {step}; nobody reads it any more",
}


def ring(trace: Trace) -> Panel:
    """Every future slot that ever held a token; kinds: ``promised``, ``stored``, ``stale``.

    Raises:
        NothingToShow: a ``future slots`` mark is not what it should be.
    """
    trace = shown_side(trace)
    tokens = stays_of(trace)
    last = {token.slot: token for token in tokens}
    stays = [
        Stay(
            f"slot {token.slot}", kind, start, end, token.rid, token.rid,
            WORDS[kind].format(step=token.step),
        )
        for token in tokens
        for kind, start, end in _phases(token, trace.end if last[token.slot] is token else None)
    ]  # fmt: skip
    stays.sort(key=lambda stay: (stay.start, _slot(stay.place)))
    places = sorted({stay.place for stay in stays}, key=_slot)
    return Panel("ring", "future slots", tuple(places), tuple(stays))


def _phases(token: Token, end: int | None) -> Iterator[tuple[str, int, int]]:
    """What it is when; a slot's last token, given the run's end, is still there then."""
    phases = [*token.phases]
    if end is not None:
        kind = "stale" if token.sampled else "promised"
        start = phases.pop()[1] if phases and phases[-1][0] == kind else end
        phases.append((kind, start, end + 1))
    yield from phases


def _slot(place: str) -> int:
    return int(place.split()[1])
