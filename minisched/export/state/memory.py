"""Which page and which row was whose, from what the allocator and the request table marked."""

from __future__ import annotations

from dataclasses import replace

from ...trace import Mark, Trace
from .stay import Panel, Stay

WORDS = {
    "admitted": "of a request",
    "evictable": "of the prefix cache",
    "wasted": "of a request that has ended or was retracted; a launched step may still use it",
}


def pages(trace: Trace) -> Panel:
    """Every page that was ever in use; kinds: ``admitted``, ``evictable`` (cached), ``wasted``."""
    stays: list[Stay] = []
    now: dict[str, Stay] = {}
    for mark in _of(trace, "page alloc", "page disown", "page free", "finish", "retraction"):
        if mark.name in ("finish", "retraction"):
            rid = str(mark.attrs["rid"])
            mine = [s for s in now.values() if s.rid == rid and s.kind == "admitted"]
            for stay in mine:
                _turn(stays, now, stay.place, mark.time, "wasted", rid)
            continue
        for place in (f"page {page}" for page in str(mark.attrs["pages"]).split()):
            if mark.name == "page free":
                _leave(stays, now, place, mark.time)
            else:
                rid = str(mark.attrs.get("rid", ""))
                kind = "admitted" if mark.name == "page alloc" else "evictable"
                _turn(stays, now, place, mark.time, kind, rid)
    return _panel("pages", "KV pages", "page", stays, now, trace)


def rows(trace: Trace) -> Panel:
    """The rows of the request table."""
    stays: list[Stay] = []
    now: dict[str, Stay] = {}
    for mark in _of(trace, "row alloc", "row free", "finish", "retraction"):
        rid = str(mark.attrs["rid"])
        if mark.name in ("finish", "retraction"):
            for stay in [s for s in now.values() if s.rid == rid and s.kind == "admitted"]:
                _turn(stays, now, stay.place, mark.time, "wasted", rid)
        elif mark.name == "row alloc":
            _turn(stays, now, f"row {mark.attrs['row']}", mark.time, "admitted", rid)
        else:
            _leave(stays, now, f"row {mark.attrs['row']}", mark.time)
    return _panel("rows", "rows of the request table", "row", stays, now, trace)


def _of(trace: Trace, *names: str) -> list[Mark]:
    """The marks of these names; of a pair of schedulers those of the side that decodes."""
    return [m for m in trace.marks if m.name in names and m.attrs.get("side") != "prefill"]


def _turn(
    stays: list[Stay], now: dict[str, Stay], place: str, time: int, kind: str, rid: str
) -> None:
    """What is in a place becomes something else."""
    _leave(stays, now, place, time)
    now[place] = Stay(place, kind, time, time, rid, rid, WORDS[kind])


def _leave(stays: list[Stay], now: dict[str, Stay], place: str, time: int) -> None:
    """A place becomes free."""
    if (stay := now.pop(place, None)) is not None and time > stay.start:
        stays.append(replace(stay, end=time))


def _panel(
    name: str, title: str, unit: str, stays: list[Stay], now: dict[str, Stay], trace: Trace
) -> Panel:
    for place in list(now):
        _leave(stays, now, place, trace.end)
    places = sorted({stay.place for stay in stays}, key=lambda place: int(place.split()[1]))
    ordered = sorted(stays, key=lambda stay: (stay.start, int(stay.place.split()[1])))
    return Panel(name, title, tuple(places), tuple(ordered))
