"""Which token was in which future slot of the ``FutureMap``, promised, stored or stale."""

from __future__ import annotations

from ...trace import Trace
from ..views.future_slots import stays_of
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
    stays = [
        Stay(
            f"slot {token.slot}", kind, start, end, token.rid, token.rid,
            WORDS[kind].format(step=token.step),
        )
        for token in stays_of(trace)
        for kind, start, end in token.phases
    ]  # fmt: skip
    stays.sort(key=lambda stay: (stay.start, _slot(stay.place)))
    places = sorted({stay.place for stay in stays}, key=_slot)
    return Panel("ring", "future slots", tuple(places), tuple(stays))


def _slot(place: str) -> int:
    return int(place.split()[1])
