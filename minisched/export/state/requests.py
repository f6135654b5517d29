"""Where each request was: in the waiting queue, in the running set, or a zombie in flight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...trace import Mark, Trace
from ...trace.lanes import is_host
from ..views.marks import named, word
from .stay import Panel, Stay

KIND_AFTER = {
    "admit": "admitted",
    "row alloc": "admitted",  # only of the side that decodes, which admits nobody: it reserves
    "retraction": "queued",
    "finish": "wasted",
}
WORDS = {
    "queued": "waits for memory",
    "admitted": "holds memory",
    "wasted": "has ended, but a launched step still names it",
}


@dataclass(frozen=True)
class Change:
    """A request joins the running set, or leaves it."""

    time: int
    rid: str
    joins: bool
    why: str  # of who leaves: how it ended (``length``, ``stop``, ..), or ``retraction``


def queue(trace: Trace) -> Panel:
    """``waiting_queue``: those without memory.

    Raises:
        NothingToShow: a mark does not say whose it is; so do all functions here.
    """
    stays = tuple(stay for stay in stays_of(trace) if stay.kind == "queued")
    return Panel("queue", "waiting_queue", _places(stays), stays)


def running(trace: Trace) -> Panel:
    """Those with memory; and zombies, which have ended while a launched step still has their row.

    SGLang's ``running_batch`` has those who decode; here the prompts being computed are in it too.
    """
    stays = tuple(stay for stay in stays_of(trace) if stay.kind != "queued")
    return Panel("set", "running set", _places(stays), stays)


def stays_of(trace: Trace) -> list[Stay]:
    """Every stay of every request, in order of time.

    Kinds: ``queued``, ``admitted`` (it holds memory) and ``wasted`` (a zombie).
    """
    came, gone = arrivals(trace), last_results(trace)
    changes: dict[str, list[Mark]] = {rid: [] for rid in came}
    for mark in _marks(trace):
        changes.setdefault(word(mark, "rid"), []).append(mark)
    found: list[Stay] = []
    for rid, marks in changes.items():
        has_ended = bool(marks) and marks[-1].name == "finish"
        end = max(gone.get(rid, 0), marks[-1].time) if has_ended else trace.end
        found += _life(rid, marks, came.get(rid, 0), end)
    return sorted(found, key=lambda stay: (stay.start, stay.end))


def changes_of(trace: Trace) -> list[Change]:
    """Who joins the running set and who leaves it, in order of time."""
    inside: set[str] = set()  # for membership only
    found = []
    for mark in _marks(trace):
        rid, joins = word(mark, "rid"), KIND_AFTER[mark.name] == "admitted"
        if joins == (rid in inside):
            continue  # one more chunk, or the end of somebody who waits
        inside ^= {rid}
        why = "" if joins else word(mark, "reason") if mark.name == "finish" else mark.name
        found.append(Change(mark.time, rid, joins, why))
    return found


def arrivals(trace: Trace) -> dict[str, int]:
    """When each request was received."""
    found: dict[str, int] = {}
    for item in trace.slices:
        if item.name == "receive" and is_host(item.lane):
            for rid in item.rids:
                found.setdefault(rid, item.end)
    return found


def last_results(trace: Trace) -> dict[str, int]:
    """When the last step that names each request came back."""
    done = [item for item in trace.slices if item.name == "process" and is_host(item.lane)]
    return {rid: item.end for item in done for rid in item.rids}


def _marks(trace: Trace) -> list[Mark]:
    """What changes a request's place; of a pair of schedulers on the side that decodes."""
    found = [mark for mark in named(trace, *KIND_AFTER) if mark.attrs.get("side") != "prefill"]
    return [mark for mark in found if mark.name != "row alloc" or mark.attrs.get("side")]


def _life(rid: str, marks: list[Mark], since: int, end: int) -> Iterator[Stay]:
    kind = "queued"
    for mark in marks:
        if (after := KIND_AFTER[mark.name]) != kind:
            if mark.time > since:
                yield Stay(rid, kind, since, mark.time, rid, rid, WORDS[kind])
            since, kind = mark.time, after
    if end > since:
        yield Stay(rid, kind, since, end, rid, rid, WORDS[kind])


def _places(stays: tuple[Stay, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(stay.place for stay in stays))
