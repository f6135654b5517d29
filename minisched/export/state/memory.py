"""Which page and which row was whose, from what the allocator and the request table marked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ...trace import Mark, Trace
from ..views.marks import named, number, word
from .stay import Panel, Stay

WORDS = {
    "admitted": "a request's",
    "evictable": "the prefix cache's",
    "wasted": "of a request that has ended or was retracted; a launched step may still use it",
}
ENDS = ("finish", "retraction")  # a request lets go of its memory


class Pool(NamedTuple):
    """How much memory there is."""

    pages: int
    page_size: int  # tokens
    rows: int  # of the request table


def pool(trace: Trace) -> Pool | None:
    """The sizes of the pool; None: the trace does not say.

    Raises:
        NothingToShow: a mark does not say which, whose or how many; so do all functions here.
    """
    for mark in _of(trace, "kv pool"):
        return Pool(number(mark, "pages"), number(mark, "page_size"), number(mark, "rows"))
    return None


def pages(trace: Trace) -> Panel:
    """Every page that was ever in use; kinds: ``admitted``, ``evictable`` (cached), ``wasted``.

    A cached page belongs to no request (``rid`` is empty); its label is who computed it.
    """
    books = _Books()
    for mark in _of(trace, "page alloc", "page disown", "page free", *ENDS):
        if mark.name in ENDS:
            books.end(word(mark, "rid"), mark.time)
            continue
        for place in (f"page {page}" for page in word(mark, "pages").split()):
            if mark.name == "page alloc":
                books.turn(place, mark.time, "admitted", word(mark, "rid"))
            elif mark.name == "page disown":
                books.turn(place, mark.time, "evictable", "")
            else:
                books.leave(place, mark.time)
    return books.panel("pages", "KV pages", trace.end)


def rows(trace: Trace) -> Panel:
    """The rows of the request table; kinds: ``admitted`` and ``wasted``."""
    books = _Books()
    for mark in _of(trace, "row alloc", "row free", *ENDS):
        if mark.name in ENDS:
            books.end(word(mark, "rid"), mark.time)
        elif mark.name == "row alloc":
            books.turn(f"row {number(mark, 'row')}", mark.time, "admitted", word(mark, "rid"))
        else:
            books.leave(f"row {number(mark, 'row')}", mark.time)
    return books.panel("rows", "rows of the request table", trace.end)


def _of(trace: Trace, *names: str) -> list[Mark]:
    """The marks of these names; of a pair of schedulers those of the side that decodes."""
    return [mark for mark in named(trace, *names) if mark.attrs.get("side") != "prefill"]


@dataclass
class _Books:
    """Who is where now, and every stay that is over."""

    now: dict[str, Stay] = field(default_factory=dict)  # by place, with its end still open
    over: list[Stay] = field(default_factory=list)

    def turn(self, place: str, time: int, kind: str, rid: str) -> None:
        """What is in a place becomes somebody else's, or the same one's in another way."""
        label = rid or (self.now[place].label if place in self.now else "")
        self.leave(place, time)
        self.now[place] = Stay(place, kind, time, time, label, rid, WORDS[kind])

    def leave(self, place: str, time: int) -> None:
        """A place becomes free; what began at the same moment is not worth a stay."""
        stay = self.now.pop(place, None)
        if stay is not None and time > stay.start:
            self.over.append(replace(stay, end=time))

    def end(self, rid: str, time: int) -> None:
        """A request has ended or was retracted: what it has not given back is a zombie's."""
        for place, stay in list(self.now.items()):
            if stay.rid == rid and stay.kind == "admitted":
                self.turn(place, time, "wasted", rid)

    def panel(self, name: str, title: str, end: int) -> Panel:
        """All stays; whoever is still there stays up to ``end``."""
        for place in list(self.now):
            self.leave(place, end)
        places = sorted({stay.place for stay in self.over}, key=_number)
        stays = sorted(self.over, key=lambda stay: (stay.start, _number(stay.place)))
        return Panel(name, title, tuple(places), tuple(stays))


def _number(place: str) -> int:
    return int(place.split()[1])
