"""A run's state at any time, read from its events: everything is a stay.

A stay is one item in one place for some time. Examples are a request in the waiting queue or in the
running set, a token in a future slot, a page of a request, and a node in the radix tree. The state
at a time consists of the stays that contain it. So a picture over time, a picture of one moment and
a player that jumps to and fro read the same lists.

``panels`` returns one ``Panel`` for each part of the engine, which is empty if the run lacks that
part. A pair of schedulers (``pd``) has each panel twice, once for each ``side``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from ..checks.history import MarkMoment, kept, many
from ..checks.leaks import PAGE, ROOT, ROW, HeldLease, Ledger
from ..trace import Mark, Trace
from ..trace.events import is_host
from ..trace.marks import BadMark, check_events
from ..trace.sides import one_side, shown_side, sides
from .views.future_map import stays_of
from .views.marks import NothingToShow, lacking, named, number, numbers, word


@dataclass(frozen=True)
class Stay:
    """An item in a place, from ``start`` up to, but not including, ``end`` (nanoseconds).

    A stay that is still open when the run ends has an ``end`` one nanosecond after the run's. It is
    then part of the state at the run's last moment. Drawings over time cut that off (``up_to``).
    """

    place: str  # a request id, ``page 7``, ``slot 3``, ``row 2``, ``node 5``
    kind: str  # a look: ``queued``, ``admitted``, ``stored``, ``evictable``, .. (``looks.py``)
    start: int = 0
    end: int = 0
    label: str = ""  # the text in its box: usually its request
    rid: str = ""  # the request it belongs to, if there is one
    about: str = ""  # one sentence for a pointer on it
    parent: str = ""  # the parent's place, in a tree
    holders: tuple[str, ...] = ()  # the requests that hold it, where several may
    size: int = 1  # pages of a node


@dataclass(frozen=True)
class Panel:
    """A part of the engine: its places in order, and all stays in them."""

    name: str  # ``queue``, ``set``, ``ring``, ``pages``, ``rows``, ``tree``
    places: tuple[str, ...]
    stays: tuple[Stay, ...]
    side: str = ""  # of a pair of schedulers (``pd``): ``prefill`` or ``decode``

    def at(self, time: int) -> dict[str, Stay]:
        """Return the stay of each place at a time; of two in one place the later."""
        return {stay.place: stay for stay in self.stays if stay.start <= time < stay.end}


def up_to(stays: Iterable[Stay], end: int) -> list[Stay]:
    """Return stays cut off at a time, which is usually the run's end."""
    return [replace(stay, end=min(stay.end, end)) for stay in stays if stay.start < end]


def count(stays: Iterable[Stay], *kinds: str) -> list[tuple[int, int]]:
    """Return (time, amount of these kinds from then on), at every change."""
    delta: Counter[int] = Counter()
    for stay in stays:
        if stay.kind in kinds:
            delta[stay.start] += stay.size
            delta[stay.end] -= stay.size
    now, series = 0, []
    for time in sorted(delta):
        if delta[time]:
            now += delta[time]
            series.append((time, now))
    return series


def panels(trace: Trace) -> tuple[Panel, ...]:
    """Return all panels: queue, set, ring, pages, rows and tree.

    Of a pair of schedulers, the panels of the prefill side come first, then those of the decode
    side.

    Raises:
        NothingToShow: a mark of the trace lacks an attribute.
    """
    found = [replace(panel, side=side) for side in sides(trace)
             for panel in panels_of(one_side(trace, side)).values()]  # fmt: skip
    last = trace.end + 1  # marks after the run's last slice are left out
    return tuple(replace(panel, stays=tuple(up_to(panel.stays, last))) for panel in found)


@kept
def panels_of(trace: Trace) -> dict[str, Panel]:
    """Return the panels of one scheduler's run by name; of a pair, those of the decode side.

    ``queue`` has requests that wait for memory (``queued``). ``set`` has requests with memory
    (``admitted``), requests with memory held for a transfer (``sending``), and zombies
    (``wasted``). SGLang's ``running_batch`` has the decoding requests; ``set`` also has the prompts
    being computed.

    ``pages`` and ``rows`` are ``admitted`` or ``wasted``. A cached page belongs to no request. Like
    a node of ``tree``, it is ``protected`` (a request has locked it) or ``evictable``; its label is
    the request that computed it. ``ring`` has tokens in future slots: ``promised``, ``stored``,
    ``stale``.

    Raises:
        NothingToShow: a mark of the trace lacks an attribute.
    """
    trace = shown_side(trace)
    books, end = Books(trace), trace.end + 1
    books.requests.changes |= waits(trace, books.joins).changes
    requests = books.requests.stays(end)
    parts = {
        "queue": [stay for stay in requests if stay.kind == "queued"],
        "set": [stay for stay in requests if stay.kind != "queued"],
        "ring": sorted(ring(trace), key=lambda stay: stay.start),
        "pages": books.pages.stays(end),
        "rows": books.rows.stays(end),
        "tree": books.nodes.stays(end),
    }
    return {name: Panel(name, places_of(name, stays), tuple(stays))
            for name, stays in parts.items()}  # fmt: skip


def places_of(name: str, stays: Sequence[Stay]) -> tuple[str, ...]:
    """Return a panel's places: requests by arrival, slots, pages and rows by number."""
    if name == "tree":
        return tuple(depth_first(stays))
    places = list(dict.fromkeys(stay.place for stay in stays))
    if name in ("ring", "pages", "rows"):
        places.sort(key=lambda place: int(place.split()[1]))
    return tuple(places)


def depth_first(stays: Sequence[Stay]) -> list[str]:
    """Return nodes, each before its children.

    A split only inserts a node between two others, so the order holds at any time.
    """
    parents = {int(stay.place.split()[1]): stay.parent for stay in stays}
    children: dict[str, list[str]] = defaultdict(list)
    for at in sorted(parents):
        children[parents[at]].append(f"node {at}")
    found, waiting = [], children["root"][::-1]
    while waiting:
        found.append(waiting.pop())
        waiting += children[found[-1]][::-1]
    return found


class Log:
    """The stays of a run, recorded while the run is replayed."""

    def __init__(self) -> None:
        self.changes: dict[Hashable, list[tuple[int, Stay | None]]] = {}

    def put(self, key: Hashable, time: int, stay: Stay | None = None) -> None:
        """Set the stay of a key from this time on, or none; stays of length zero are dropped."""
        mine = self.changes.setdefault(key, [])
        if mine and mine[-1][0] == time:
            mine.pop()
        if (mine[-1][1] if mine else None) != stay:
            mine.append((time, stay))

    def stays(self, end: int) -> list[Stay]:
        """Return all stays by time; open ones last until ``end``."""
        found = [
            replace(stay, start=start, end=until)
            for mine in self.changes.values()
            for (start, stay), (until, _) in pairwise([*mine, (end, None)])
            if stay and until > start
        ]
        return sorted(found, key=lambda stay: stay.start)


# -- Memory, replayed: the owner of each row and each page, and the radix tree ---------------------

ENDS = ("finish", "retraction")  # marks at which a request releases its memory
ZOMBIE = "has ended or was retracted, but a launched step still names it"
WORDS = {
    "admitted": "holds memory",
    "sending": "its pages are held for its KV, which moves from the prefill to the decode side",
    "wasted": ZOMBIE,
}
OWNED = {
    "admitted": "a request's",
    "sending": "a request's, held for the transfer of its KV",
    "wasted": f"of a request that {ZOMBIE}",
}
CACHED = {
    "protected": "in the prefix cache and in use: a request has locked it",
    "evictable": "only the prefix cache has it",
}


class Pool(NamedTuple):
    """The size of the memory."""

    pages: int
    page_size: int  # tokens
    rows: int  # of the request table


def pool(trace: Trace) -> Pool | None:
    """Return the sizes of the pool, or None if the trace does not contain them.

    Raises:
        NothingToShow: a mark lacks their number.
    """
    for mark in named(shown_side(trace), "kv pool"):
        return Pool(number(mark, "pages"), number(mark, "page_size"), number(mark, "rows"))
    return None


@dataclass
class Node:
    """A node of the radix tree, from the marks."""

    id: int
    parent: int
    tokens: str  # the first few, as text
    lock_ref: int = 0
    locks: Counter[str] = field(default_factory=Counter)  # that end here, by request

    @property
    def state(self) -> str:
        """Return protected or evictable."""
        return "protected" if self.lock_ref else "evictable"


OF_LEASES = ("row alloc", "row hold", "row let go", "row free", "page alloc", "admit", *ENDS)
OF_PAGES = ("page disown", "page free", "block add", "block lock", "block evict")
OF_NODES = ("radix add", "radix split", "radix evict", "radix lock")


class Books:
    """One scheduler's memory, mark by mark, and the logs of its stays.

    The ledger of ``leaks.py`` knows the holder of each row and page. Of the radix tree it knows
    only the pages.
    """

    def __init__(self, trace: Trace) -> None:
        self.requests, self.rows, self.pages, self.nodes = Log(), Log(), Log(), Log()
        self.ledger = Ledger()
        self.joins: dict[str, list[int]] = defaultdict(list)  # the times when a request got memory
        self.joined = set[HeldLease]()  # its request was admitted, or its pages were reserved
        self.refs = Counter[int]()  # page -> leases that use it, where there is no tree
        self.computed: dict[int, str] = {}  # page -> request
        self.tree: dict[int, Node] = {}
        marks = named(trace, *OF_LEASES, *OF_PAGES, *OF_NODES, "insert")
        try:
            check_events((), marks)
        except BadMark as error:
            raise NothingToShow(f"{error}.") from error
        for mark in marks:
            before = self._lease(mark)
            self.ledger.hear(mark, MarkMoment(mark.time))
            pages = numbers(mark, "pages") if mark.name in (*OF_PAGES, "page alloc") else []
            if lease := self._lease(mark) or before:
                self._look_at_lease(lease, mark)
                pages += lease.pages
            if mark.name in OF_NODES:
                pages += self._node(mark)
            for page in pages:
                if mark.name in ("block lock", "block evict"):
                    is_lock = mark.name == "block lock"
                    self.refs[page] = self.refs[page] + number(mark, "delta") if is_lock else 0
                self._look_at_page(page, mark.time)

    def _lease(self, mark: Mark) -> HeldLease | None:
        """Return the lease of a mark, if it is still held."""
        if mark.name not in OF_LEASES:
            return None
        if mark.name not in ("admit", *ENDS):
            return self.ledger.held.get((ROW, number(mark, "row")))
        lease = self.ledger.newest.get(word(mark, "rid"))
        return lease if lease and not lease.released else None

    def _look_at_lease(self, lease: HeldLease, mark: Mark) -> None:
        """Log a lease's state: a zombie (``wasted``) is closed while a step in flight has it.

        Before or after that it may be held for a transfer (``sending``).
        """
        rid, place, time = lease.rid, f"row {lease.row}", mark.time
        if mark.name in ("admit", "row hold") and lease not in self.joined:
            self.joined.add(lease)
            self.joins[rid].append(time)
        if lease.released:
            self.rows.put(lease.row, time)
            self.requests.put(lease, time)
            return
        kind, used = kinds_of(lease)
        self.rows.put(lease.row, time, Stay(place, used, label=rid, rid=rid, about=OWNED[kind]))
        if lease in self.joined:  # a retracted request may run again while its zombie exists
            place = f"{rid} ({place})" if (kind, lease.why) == ("wasted", ENDS[1]) else rid
            about = Stay(place, kind, label=rid, rid=rid, about=WORDS[kind])
            self.requests.put(lease, time, about)

    def _node(self, mark: Mark) -> list[int]:
        """Update the radix tree, and return the changed node's pages.

        A split takes the front of a node, and holds every lock of it.
        """
        at, time = number(mark, "node"), mark.time
        if mark.name == "radix add":
            self.tree[at] = Node(at, number(mark, "parent"), word(mark, "tokens"))
            touched = self._path(mark, at)[:1]
        elif mark.name == "radix split":
            if (child := number(mark, "child")) not in self.tree:
                raise lacking(mark, f"its node {child}")
            lower = self.tree[child]
            self.tree[at] = Node(at, lower.parent, word(mark, "tokens"), lower.lock_ref)
            lower.parent, lower.tokens = at, word(mark, "child_tokens")
            touched = [self.tree[at], lower]
        else:
            touched = self._path(mark, at)
        if mark.name == "radix lock":
            delta = number(mark, "delta")
            for node in touched:
                node.lock_ref += delta
            if touched:
                whose = self.ledger.whose
                touched[0].locks[whose.rid if whose else ""] += delta
        elif mark.name == "radix evict":
            touched = touched[:1]
            self.tree.pop(at, None)
        pages = self.ledger.nodes
        for node in touched:
            stay = node_stay(node, len(pages[node.id])) if node.id in self.tree else None
            self.nodes.put(node.id, time, stay)
        return [page for node in touched for page in pages.get(node.id, ())]

    def _path(self, mark: Mark, at: int) -> list[Node]:
        """Return the nodes from one up, without the root.

        Raises:
            NothingToShow: one of them was evicted, or never added.
        """
        found = []
        while at != ROOT:
            if at not in self.tree:
                raise lacking(mark, f"its node {at}")
            found.append(self.tree[at])
            at = self.tree[at].parent
        return found

    def _look_at_page(self, page: int, time: int) -> None:
        place, label, ledger = f"page {page}", self.computed.get(page, ""), self.ledger
        stay = None
        if lease := ledger.held.get((PAGE, page)):
            self.computed[page] = lease.rid
            kind, used = kinds_of(lease)
            stay = Stay(place, used, label=lease.rid, rid=lease.rid, about=OWNED[kind])
        elif page in ledger.cached or page in ledger.disowned:
            node = self.tree.get(ledger.cached.get(page, ROOT))
            kind = "protected" if self.refs[page] or (node and node.lock_ref) else "evictable"
            stay = Stay(place, kind, label=label, about=CACHED[kind])
        else:
            self.computed.pop(page, None)
        self.pages.put(page, time, stay)


def kinds_of(lease: HeldLease) -> tuple[str, str]:
    """Return a lease's kind (``sending``, ``wasted``, ``admitted``) and the look of its memory."""
    if lease.num_transfers:
        return "sending", "admitted"
    used = "wasted" if lease.closed else "admitted"
    return used, used


def node_stay(node: Node, pages: int) -> Stay:
    """Return the stay of a node; ``holders`` lock the path from it up to the root.

    Tokens stand as text before the numbers, where all of them are printable bytes.
    """
    ids = [int(part) for part in node.tokens.split() if part.isdecimal()]
    is_text = ids and all(32 <= byte < 127 for byte in ids)
    tokens = f'"{bytes(ids).decode()}" {node.tokens}' if is_text else node.tokens
    return Stay(
        f"node {node.id}", node.state, label=tokens, size=pages,
        about=f"{many(pages, 'page')}, lock_ref {node.lock_ref}: {node.state}",
        parent="root" if node.parent == ROOT else f"node {node.parent}",
        holders=tuple(sorted(rid for rid, locks in node.locks.items() if locks)),
    )  # fmt: skip


# -- Waiting requests, and tokens in the slots of the ``FutureMap`` --------------------------------


def arrivals(trace: Trace) -> dict[str, list[int]]:
    """Return the arrival times of each id: one for each end, and one for a live request.

    An id may be used again. A request that arrived while another lived under its id was refused,
    and is left out.
    """
    trace, ends = shown_side(trace), defaultdict[str, list[int]](list)
    for mark in named(trace, "finish"):
        ends[word(mark, "rid")].append(mark.time)
    found: dict[str, list[int]] = {}
    for item in trace.slices:
        if item.name == "receive" and is_host(item.lane):
            for rid in item.rids:
                came = found.setdefault(rid, [])
                if bisect_right(ends[rid], item.end) >= len(came):
                    came.append(item.end)
    return found


def waits(trace: Trace, joins: dict[str, list[int]]) -> Log:
    """Return the times from a request's arrival or retraction until it gets memory or ends."""
    log, came = Log(), arrivals(trace)
    ends = {name: defaultdict[str, list[int]](list) for name in ENDS}
    for mark in named(trace, *ENDS):
        ends[mark.name][word(mark, "rid")].append(mark.time)
    for rid in dict.fromkeys([*came, *joins]):
        starts = [(start, [at for at in joins[rid] if at >= start]) for start in came.get(rid, [0])]
        # a request that is retracted at the time of its admission waits for the next one
        starts += [(start, joins[rid][nth:])
                   for nth, start in enumerate(ends["retraction"][rid], start=1)]  # fmt: skip
        for start, later in starts:
            stops = [*later, *(at for at in ends["finish"][rid] if at >= start)]
            waiting = Stay(rid, "queued", label=rid, rid=rid, about="waits for memory")
            log.put((rid, start), start, waiting)
            if stops:
                log.put((rid, start), min(stops))
    return log


RING_WORDS = {
    "promised": "promised to step {step}, which has not sampled it yet",
    "stored": "stored by step {step}; a later step reads it",
    "stale": "left by step {step}; no step reads it any more",
}


def ring(trace: Trace) -> list[Stay]:
    """Return every stay of a token in a future slot; the last one lasts until the run's end."""
    return [
        Stay(f"slot {token.slot}", kind, start, end, token.rid, token.rid,
             RING_WORDS[kind].format(step=token.step))
        for token in stays_of(trace)
        for kind, start, end in token.phases
    ]  # fmt: skip
