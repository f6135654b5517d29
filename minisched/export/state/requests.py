"""Where each request was: in the waiting queue, in the running set, or a zombie in flight."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from ...trace import Mark, Trace
from ...trace.events import is_host
from ...trace.sides import shown_side
from ..views.future_slots import SlotStay as Token
from ..views.future_slots import stays_of
from ..views.marks import named, word
from .memory import ENDS, WORDS, LeaseStay, leases_of
from .stay import Panel, Stay

# -- Which token was in which future slot of the ``FutureMap``, promised, stored or stale ----------

RING_WORDS = {
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
            RING_WORDS[kind].format(step=token.step),
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


WAITS = "waits for memory"


@dataclass(frozen=True)
class RunningChange:
    """A request joins the running set, or leaves it."""

    time: int
    rid: str
    joins: bool
    why: str  # of who leaves: how it ended (``length``, ``stop``, ..), or ``retraction``


def queue(trace: Trace) -> Panel:
    """``waiting_queue``: requests that wait for memory.

    Raises:
        NothingToShow: a mark does not say whose it is; so do all functions here.
    """
    stays = tuple(stay for stay in request_stays(trace) if stay.kind == "queued")
    return Panel("queue", "waiting_queue", _places(stays), stays)


def running(trace: Trace) -> Panel:
    """Those with memory; and zombies, whose rows are not free yet.

    SGLang's ``running_batch`` has those who decode; here the prompts being computed are in it too.
    """
    stays = tuple(stay for stay in request_stays(trace) if stay.kind != "queued")
    return Panel("set", "running set", _places(stays), stays)


def request_stays(trace: Trace) -> list[Stay]:
    """Every stay of every request, in order of time; of a pair of schedulers on the decode side.

    Kinds: ``queued``, ``admitted`` (it holds memory), ``sending`` (its memory is held for a
    transfer) and ``wasted`` (a zombie). A request that was retracted waits, and may run again,
    beside its own zombie: that one's place has its row's number (``a (row 3)``).
    """
    trace = shown_side(trace)
    leases = [lease for lease in leases_of(trace) if lease.joined is not None]
    found = [stay for lease in leases for stay in _lives(lease)]
    came = arrivals(trace)
    by_rid: dict[str, list[LeaseStay]] = {rid: [] for rid in came}
    for lease in leases:
        by_rid.setdefault(lease.rid, []).append(lease)
    ends: dict[str, list[Mark]] = {}
    for mark in named(trace, *ENDS):
        ends.setdefault(word(mark, "rid"), []).append(mark)
    for rid, mine in by_rid.items():
        found += _waits(rid, came.get(rid, [0]), mine, ends.get(rid, []), trace.end + 1)
    return sorted(found, key=lambda stay: (stay.start, stay.end))


def changes_of(trace: Trace) -> list[RunningChange]:
    """Who joins the running set and who leaves it, in order of time."""
    trace = shown_side(trace)
    is_pair = bool(named(trace, "row hold")) and not named(trace, "admit")
    inside: set[str] = set()  # for membership only
    found = []
    for mark in named(trace, "row let go" if is_pair else "admit", *ENDS):
        rid, joins = word(mark, "rid"), mark.name not in ENDS
        if joins == (rid in inside):
            continue  # one more chunk, or the end of somebody who waits
        inside ^= {rid}
        why = "" if joins else word(mark, "reason") if mark.name == "finish" else mark.name
        found.append(RunningChange(mark.time, rid, joins, why))
    return found


def arrivals(trace: Trace) -> dict[str, list[int]]:
    """When the requests of each id were received: one for each end, and for who has not ended.

    An id may come back. Whoever came while another lived under it was refused, and is left out.
    """
    trace, ends = shown_side(trace), dict[str, list[int]]()
    for mark in named(trace, "finish"):
        ends.setdefault(word(mark, "rid"), []).append(mark.time)
    found: dict[str, list[int]] = {}
    for item in trace.slices:
        if item.name == "receive" and is_host(item.lane):
            for rid in item.rids:
                came = found.setdefault(rid, [])
                if bisect_right(ends.get(rid, []), item.end) >= len(came):
                    came.append(item.end)
    return found


def _lives(lease: LeaseStay) -> Iterator[Stay]:
    """In the set, from when its request was admitted; and then maybe as a zombie."""
    for kind, start, end in lease.phases:
        start = max(start, lease.joined or 0)
        is_beside = kind == "wasted" and lease.closed == "retraction"
        place = f"{lease.rid} (row {lease.row})" if is_beside else lease.rid
        if end > start:
            yield Stay(place, kind, start, end, lease.rid, lease.rid, WORDS[kind])


def _waits(
    rid: str, came: list[int], leases: list[LeaseStay], ends: list[Mark], last: int
) -> Iterator[Stay]:  # fmt: skip
    """From when it came, or was retracted, up to when it gets memory or ends."""
    joins = [lease.joined for lease in leases if lease.joined is not None]
    finished = [mark.time for mark in ends if mark.name == "finish"]
    retracted = [mark.time for mark in ends if mark.name == "retraction"]
    waits = [(start, [stop for stop in joins if stop >= start]) for start in came]
    # who is retracted in the moment of its admission waits for the next one
    waits += [(start, joins[nth:]) for nth, start in enumerate(retracted, start=1)]
    for start, later in waits:
        end = min([*later, *(stop for stop in finished if stop >= start)], default=last)
        if end > start:
            yield Stay(rid, "queued", start, end, rid, rid, WAITS)


def _places(stays: tuple[Stay, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(stay.place for stay in stays))
