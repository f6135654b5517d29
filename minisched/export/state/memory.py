"""Which page and which row was whose, from what allocator, table and radix tree marked."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...trace import Mark, Trace
from ..views.marks import named, number, word
from ..views.radix_tree import CHANGES as TREE_CHANGES
from ..views.radix_tree import Tree
from . import leases
from .leases import Leases, LeaseStay, leases_of
from .side import shown_side
from .stay import Panel, Stay

OWNED = {
    "admitted": "a request's",
    "sending": "a request's, held for the transfer of its KV",
    "wasted": f"of a request that {leases.ZOMBIE}",
}
CACHED = {
    "protected": "in the prefix cache and in use: a request has locked it",
    "evictable": "only the prefix cache has it",
}

BLOCK_CHANGES = ("block add", "block lock", "block evict")  # a cache without a tree

UNKNOWN = "the prefix cache has it"  # an older trace does not say in which node


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
    for mark in named(shown_side(trace), "kv pool"):
        return Pool(number(mark, "pages"), number(mark, "page_size"), number(mark, "rows"))
    return None


def pages(trace: Trace) -> Panel:
    """Every page that was ever in use; of a pair of schedulers on the side that decodes.

    Kinds: ``admitted`` (a request's own), ``wasted`` (a zombie's), ``protected`` (cached, and a
    request has locked it) and ``evictable`` (cached). A cached page belongs to no request
    (``rid`` is empty); its label is who computed it.
    """
    trace, books = shown_side(trace), _Books()
    for mark in named(trace, *leases.CHANGES, "page alloc", "page disown", "page free",
                      *TREE_CHANGES, *BLOCK_CHANGES):  # fmt: skip
        books.apply(mark)
    stays = books.close(trace.end + 1)
    places = sorted({stay.place for stay in stays}, key=_number)
    return Panel("pages", "KV pages", tuple(places), tuple(stays))


def rows(trace: Trace) -> Panel:
    """The rows of the request table; kinds: ``admitted`` and ``wasted``."""
    stays = [
        Stay(f"row {lease.row}", "admitted" if kind == "sending" else kind, start, end,
             lease.rid, lease.rid, OWNED[kind])
        for lease in leases_of(shown_side(trace))
        for kind, start, end in lease.phases
    ]  # fmt: skip
    stays.sort(key=lambda stay: (stay.start, _number(stay.place)))
    places = sorted({stay.place for stay in stays}, key=_number)
    return Panel("rows", "rows of the request table", tuple(places), tuple(stays))


class _Books:
    """Whose each page is now, and every stay that is over."""

    def __init__(self) -> None:
        self.leases, self.tree = Leases(), Tree()
        self.owner: dict[int, LeaseStay] = {}
        self.owned: dict[LeaseStay, dict[int, None]] = {}  # the other way round
        self.cached: dict[int, int] = {}  # page -> node; -1: nobody says which
        self.ref_cnt: dict[int, int] = {}  # page -> leases that use it, where there is no tree
        self.now: dict[int, Stay] = {}  # with its end still open
        self.over: list[Stay] = []

    def apply(self, mark: Mark) -> None:
        """Let happen what a mark says, and look again at the pages that it is about."""
        if mark.name in TREE_CHANGES:
            touched = self._grow(mark)
        elif mark.name in BLOCK_CHANGES:
            touched = self._count_blocks(mark)
        elif mark.name in leases.CHANGES:
            lease = self.leases.apply(mark)
            touched = list(self.owned.get(lease, ())) if lease else []
        else:
            touched = _ids(mark, "pages")
            self._hand_over(mark, touched)
        for page in touched:
            self._look(page, mark.time)

    def _hand_over(self, mark: Mark, ids: list[int]) -> None:
        """Pages become a lease's, or stop being one's, or become free."""
        if mark.name == "page alloc":
            row, rid = number(mark, "row"), word(mark, "rid")
            lease = self.leases.by_row.get(row) or self.leases.opened(rid, row, mark.time)
            self.owner |= dict.fromkeys(ids, lease)
            self.owned.setdefault(lease, {}).update(dict.fromkeys(ids))
            return
        for page in ids:
            if lease_before := self.owner.pop(page, None):
                self.owned[lease_before].pop(page, None)
            if mark.name == "page free":
                self.cached.pop(page, None)
            else:
                self.cached.setdefault(page, -1)

    def _grow(self, mark: Mark) -> list[int]:
        """The tree changes; the pages of the nodes that are concerned."""
        self.tree.apply(mark)
        node_id = number(mark, "node")
        if mark.name == "radix lock":
            return [page for node in self.tree.path(node_id) for page in node.page_ids]
        node = self.tree.nodes[node_id]
        if mark.name == "radix evict":
            self.tree.bury()
        else:
            self.cached |= dict.fromkeys(node.page_ids, node_id)
        return list(node.page_ids)

    def _count_blocks(self, mark: Mark) -> list[int]:
        """Blocks enter the cache, are used or let go, or are evicted; their pages."""
        touched = _ids(mark, "pages")
        for page in touched:
            if mark.name == "block evict":
                self.ref_cnt.pop(page, None)
            else:
                delta = number(mark, "delta") if mark.name == "block lock" else 0
                self.ref_cnt[page] = self.ref_cnt.get(page, 0) + delta
        return touched

    def _look(self, page: int, time: int) -> None:
        """Begin a new stay of a page where something about it has changed."""
        before = self.now.get(page)
        kind, rid, about = self._whose(page)
        if before and (before.kind, before.rid, before.about) == (kind, rid, about):
            return
        label = rid or (before.label if before else "")
        self._leave(page, time)
        if kind:
            self.now[page] = Stay(f"page {page}", kind, time, time, label, rid, about)

    def _whose(self, page: int) -> tuple[str, str, str]:
        """(kind, request, words); the kind of a free page is empty."""
        if lease := self.owner.get(page):
            kind = "admitted" if lease.kind == "sending" else lease.kind
            return kind, lease.rid, OWNED[lease.kind]
        if page not in self.cached:
            return "", "", ""
        if page in self.ref_cnt:
            state = "protected" if self.ref_cnt[page] else "evictable"
            return state, "", CACHED[state]
        node = self.tree.nodes.get(self.cached[page])
        return (node.state, "", CACHED[node.state]) if node else ("evictable", "", UNKNOWN)

    def _leave(self, page: int, time: int) -> None:
        """What began at the same moment is not worth a stay."""
        stay = self.now.pop(page, None)
        if stay is not None and time > stay.start:
            self.over.append(replace(stay, end=time))

    def close(self, end: int) -> list[Stay]:
        """All stays, in order of time; whoever is still there stays up to ``end``."""
        for page in list(self.now):
            self._leave(page, end)
        return sorted(self.over, key=lambda stay: (stay.start, _number(stay.place)))


def _ids(mark: Mark, name: str) -> list[int]:
    return [int(text) for text in word(mark, name).split() if text.isdecimal()]


def _number(place: str) -> int:
    return int(place.split()[1])
