"""Which page and which row was whose, from what allocator, table and radix tree marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from ...trace import Mark, Trace
from ...trace.sides import shown_side
from ..views.marks import named, number, word
from .stay import Panel, Stay
from .tree import CHANGES as TREE_CHANGES
from .tree import Tree

# -- Leases on memory, replayed: when each was opened, held, closed and released -------------------

ENDS = ("finish", "retraction")  # a request lets go of its memory
LEASE_CHANGES = ("row alloc", "admit", "row hold", "row let go", *ENDS, "row free")
ZOMBIE = "has ended or was retracted, but a launched step still names it"
WORDS = {
    "admitted": "holds memory",
    "sending": "its pages are held for its KV, which moves from the prefill to the decode side",
    "wasted": ZOMBIE,
}


@dataclass(eq=False)
class LeaseStay:
    """A request's row and pages, from ``row alloc`` to ``row free``.

    It is a zombie (``wasted``) once it is closed, while a launched step still names it. For a
    transfer it may be held, before or after that (``sending``).
    """

    rid: str
    row: int
    changes: list[tuple[int, str]] = field(default_factory=list)  # (time, kind from then on)
    joined: int | None = None  # when its request was admitted, or its pages were reserved
    closed: str = ""  # by which mark
    held: int = 0  # transfers that read or write its pages
    end: int = 0  # when its row was free; after the end of the run: never

    @property
    def kind(self) -> str:
        """``admitted``, ``sending`` or ``wasted``."""
        return "sending" if self.held else "wasted" if self.closed else "admitted"

    @property
    def phases(self) -> Iterator[tuple[str, int, int]]:
        """(kind, start, end), as far as it takes time; without what goes on as it was."""
        merged: list[tuple[int, str]] = []
        for time, kind in self.changes:
            if merged and merged[-1][0] == time:
                merged.pop()
            if not merged or merged[-1][1] != kind:
                merged.append((time, kind))
        for (start, kind), (end, _) in pairwise([*merged, (self.end, "")]):
            if end > start:
                yield kind, start, end


class Leases:
    """All leases, as far as the marks that were applied tell."""

    def __init__(self) -> None:
        self.all: list[LeaseStay] = []
        self.by_row: dict[int, LeaseStay] = {}  # those that are not released
        self.newest: dict[str, LeaseStay] = {}  # of each request

    def apply(self, mark: Mark) -> LeaseStay | None:
        """Let happen what one of ``CHANGES`` says; the lease that it is about, if there is one.

        Raises:
            NothingToShow: the mark does not say whose or which row it is.
        """
        rid = word(mark, "rid")
        lease: LeaseStay | None
        if mark.name == "row alloc":
            lease = self.opened(rid, number(mark, "row"), mark.time)
        elif mark.name in ("row hold", "row let go", "row free"):
            lease = self.by_row.get(number(mark, "row"))
        else:
            lease = self.newest.get(rid)
        if lease is not None:
            self._change(lease, mark)
        return lease

    def opened(self, rid: str, row: int, time: int) -> LeaseStay:
        """A new lease on a row."""
        lease = self.newest[rid] = self.by_row[row] = LeaseStay(rid, row)
        lease.changes.append((time, lease.kind))
        self.all.append(lease)
        return lease

    def _change(self, lease: LeaseStay, mark: Mark) -> None:
        if mark.name in ("admit", "row hold") and lease.joined is None:
            lease.joined = mark.time
        if mark.name in ("row hold", "row let go"):
            lease.held += 1 if mark.name == "row hold" else -1
        elif mark.name in ENDS:
            lease.closed = lease.closed or mark.name
        elif mark.name == "row free":
            lease.end = mark.time
            self.by_row.pop(lease.row, None)
            if self.newest.get(lease.rid) is lease:
                del self.newest[lease.rid]
        lease.changes.append((mark.time, lease.kind))


def leases_of(trace: Trace) -> list[LeaseStay]:
    """Every lease of one scheduler's run, in the order in which they were opened.

    Raises:
        NothingToShow: a mark does not say whose or which row it is.
    """
    leases = Leases()
    for mark in named(trace, *LEASE_CHANGES):
        leases.apply(mark)
    for lease in leases.by_row.values():
        lease.end = trace.end + 1
    return leases.all


OWNED = {
    "admitted": "a request's",
    "sending": "a request's, held for the transfer of its KV",
    "wasted": f"of a request that {ZOMBIE}",
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
    for mark in named(trace, *LEASE_CHANGES, "page alloc", "page disown", "page free",
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
        elif mark.name in LEASE_CHANGES:
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
