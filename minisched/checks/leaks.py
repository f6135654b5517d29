"""Leaks: whatever is held by nobody, by somebody who has ended, or freed by who did not hold it.

Read from a trace alone, at every step and at the end. What a live scheduler holds is looked at in
``books.py``. What was launched and never ended is in ``pending.py``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..trace import Act, Mark, Slice, Trace
from ..trace.cells import spans_of
from ..trace.events import is_host, lane_words
from .history import MarkMoment, Offence, PlayedOrder, moments, numbers, order_of, plural, sides

# -- A leak, or what leads to one: memory freed twice, or used by somebody it does not belong to

KINDS = {
    "lost": "nobody has it, and it is not free",
    "held": "whoever held it has ended, and no step in flight names it",
    "freed": "it was freed twice, or by somebody who did not hold it",
    "given": "it was handed out while somebody held it",
    "used": "a step names it, although it is not its request's",
    "pending": "it was launched or begun, and nobody waited for its end",
}


@dataclass(frozen=True)
class Leak:
    """One thing that is not where it should be, and its owner's story.

    ``resource`` is page, row, lock, future slot, step, op or thread; ``what`` names it (``pages
    3-5``); ``kind`` is one of ``KINDS``. ``rid`` is the owner, or empty. ``time`` is when it could
    first be seen, in nanoseconds; ``slices`` are those in which it was taken and in which it should
    have been given back, as far as they are known.
    """

    resource: str
    what: str
    kind: str
    rid: str
    sentence: str
    time: int = 0
    slices: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    @property
    def offence(self) -> Offence:
        """What a picture of it shows in red."""
        return Offence(self.slices, self.sentence)


# -- Positions that a step computes, although their request holds no page for them -----------------
#
# A step finds the KV slot of a position in its row of the page table. Where no page was ever listed
# for it, the step writes wherever the cell happens to point, which may be anybody's.

TABLE = "page table"


def find_unlisted(trace: Trace) -> Iterator[str]:
    """A sentence for each step and request that goes through cells of the table with no page.

    A row is listed from its beginning on, so its length tells which of its cells are. A stage of a
    pipeline has a table of its own, and so has either side of ``pd``.
    """
    max_len = next((int(m.attrs[TABLE]) for m in trace.marks if m.name == "row length"), 0)
    steps = {item.id: item.step for item in trace.slices}
    listed: dict[tuple[str, int], int] = {}  # by table and row, how many cells list a page
    for act in trace.program if max_len else ():
        for first, last in spans_of(act.at) if act.resource.endswith(TABLE) else ():
            row, (start, end) = first // max_len, (first % max_len, last % max_len + 1)
            length = listed.get((act.resource, row), 0)
            if act.kind == "free":
                listed[act.resource, row] = 0
            elif act.kind == "write" and start <= length:
                listed[act.resource, row] = max(length, end)
            elif act.kind == "read" and end > length:
                yield (
                    f"step {steps.get(act.op, 0)} computes {act.rid}'s position {end - 1}, but "
                    f"{act.rid} holds pages for {length} positions only"
                )


# -- A request's row and what hangs on it, as the marks of a trace tell it -------------------------


@dataclass(eq=False)
class HeldLease:
    """A row of the request table, the pages and the locks that belong to it.

    It is *closed* when its request ends or is retracted, and *released* when its row is freed. Both
    ``closed`` and ``released`` are None before. ``overdue`` is the first moment at which it was
    closed, and neither a step in flight nor a transfer named it.
    """

    rid: str
    row: int
    opened: MarkMoment
    pages: dict[int, MarkMoment] = field(default_factory=dict)  # its own, in the order of positions
    locks: Counter[int] = field(default_factory=Counter)  # by node of the radix tree
    num_transfers: int = 0
    locked: dict[int, MarkMoment] = field(default_factory=dict)  # since when, by node
    last_step: int = 0  # the newest that names it
    step_before: int = 0  # and the one before that
    closed: MarkMoment | None = None
    why: str = ""  # it was closed: stop, length, abort, error, retraction
    released: MarkMoment | None = None
    overdue: MarkMoment | None = None

    @property
    def rest(self) -> list[tuple[str, str]]:
        """(resource, name) of all that it still holds."""
        rows = [("row", f"row {self.row}")] if self.released is None else []
        pages = [("page", plural("page", self.pages))] if self.pages else []
        locked = [node for node, count in self.locks.items() if count]
        locks = [("lock", f"a lock on {plural('node', locked)}")] if locked else []
        return [*pages, *rows, *locks]

    @property
    def history(self) -> str:
        """``r1 in step 2 (..); r1 ended (stop) ..``: who got it when, and what became of them."""
        taken = min([*self.pages.values(), self.opened], key=lambda moment: moment.time)
        return f"{self.rid} {taken}; {self.end}"

    def lock(self, node: int, delta: int, now: MarkMoment) -> None:
        """It takes a lock on a node of the radix tree, or gives it back."""
        self.locks[node] += delta
        if delta > 0:
            self.locked[node] = now

    @property
    def lock_history(self) -> str:
        """The same of its locks that are left."""
        nodes = [node for node, count in self.locks.items() if count]
        taken = [str(self.locked[node]) for node in nodes if node in self.locked]
        return f"{self.rid} {' and '.join(dict.fromkeys(taken))}; {self.end}"

    @property
    def end(self) -> str:
        """What became of its request, and of it."""
        if self.closed is None:
            return f"{self.rid} has not ended"
        verb = "was retracted" if self.why == "retraction" else f"ended ({self.why})"
        return f"{self.rid} {verb} {self.closed}"

    @property
    def slices(self) -> tuple[int, ...]:
        """Where it was taken, and where its request let go of it."""
        closed = self.closed.slices if self.closed else ()
        return tuple(dict.fromkeys([*self.opened.slices, *closed]))


# -- Whose every page is, as the allocator and the prefix cache marked it --------------------------


class PageBook:
    """A page is a lease's, or the cache's, or on its way from one to the other, or free.

    ``knows_all`` says that nobody held a page before the first mark; ``knows_tree`` that the trace
    says which pages a node of the radix tree has.
    """

    def __init__(self, leaks: list[Leak]) -> None:
        self.leaks = leaks
        self.held: dict[int, HeldLease] = {}
        self.cached: dict[int, int] = {}  # page -> node
        self.nodes: dict[int, list[int]] = {}  # the other way round
        self.disowned: dict[int, tuple[HeldLease, MarkMoment]] = {}  # and not free or cached as yet
        self.freed: dict[
            int, tuple[str, MarkMoment]
        ] = {}  # by whom, or empty for the cache, and when
        self.knows_all = False
        self.knows_tree = True

    def take(self, lease: HeldLease, pages: Sequence[int], now: MarkMoment) -> None:
        """They are handed out."""
        for page in pages:
            if page in self.held or page in self.cached:
                self._given_twice(page, lease, now)
            self.held[page] = lease
            self.freed.pop(page, None)
            lease.pages[page] = now

    def disown(self, pages: Sequence[int], now: MarkMoment) -> None:
        """They stop being a lease's."""
        for page in pages:
            lease = self.held.pop(page, None)
            if lease is not None:
                lease.pages.pop(page, None)
                if page not in self.cached:
                    self.disowned[page] = lease, now

    def free(self, pages: Sequence[int], now: MarkMoment) -> None:
        """They are free from now on."""
        for page in pages:
            lease = self.held.pop(page, None)
            if lease is not None:
                if lease.closed is None:
                    self._freed_under(page, lease, now)
                lease.pages.pop(page, None)
            elif page in self.disowned:
                lease, _ = self.disowned.pop(page)
            elif page in self.freed or self.knows_all:
                self._freed_twice(page, now)
            if page in self.cached:
                self._freed_in_cache(page, now)
            self.freed[page] = lease.rid if lease else "", now

    def add(self, node: int, pages: Sequence[int]) -> None:
        """A node of the tree has them."""
        self.knows_tree = self.knows_tree and bool(pages)
        self.nodes[node] = list(pages)
        for page in pages:
            self.cached[page] = node
            self.disowned.pop(page, None)

    def split(self, node: int, child: int, num_pages: int) -> None:
        """A new node takes the first pages of another one's."""
        pages = self.nodes.get(child, [])
        self.nodes[node], self.nodes[child] = pages[:num_pages], pages[num_pages:]
        self.cached |= dict.fromkeys(pages[:num_pages], node)

    def evict(self, node: int, now: MarkMoment) -> None:
        """A node is gone; its pages are about to be free."""
        owner = HeldLease("", 0, now)
        for page in self.nodes.pop(node, []):
            self.cached.pop(page, None)
            self.disowned[page] = owner, now

    def find_lost(self, now: MarkMoment) -> None:
        """Between two steps nothing is on its way."""
        if not self.knows_tree:
            self.disowned.clear()
        by_owner: defaultdict[tuple[HeldLease, MarkMoment], list[int]] = defaultdict(list)
        for page, owner in self.disowned.items():
            by_owner[owner].append(page)
        self.disowned.clear()
        for (lease, when), pages in by_owner.items():
            what = plural("page", pages)
            giver = f"{lease.rid} gave up" if lease.rid else "the prefix cache evicted"
            self.leaks.append(
                Leak("page", what, "lost", lease.rid,
                     f"{giver} {what} {when}, and nobody has put it back among the free ones: it "
                     "is neither free, nor cached, nor anybody's",
                     now.time, when.slices)
            )  # fmt: skip

    def _given_twice(self, page: int, lease: HeldLease, now: MarkMoment) -> None:
        before = self.held.get(page)
        whose = before.rid if before else "the prefix cache"
        since = f", allocated to {before.history}" if before else ""
        self.leaks.append(
            Leak("page", f"page {page}", "given", whose if before else "",
                 f"page {page} was handed out to {lease.rid} {now} while it was still "
                 f"{whose}'s{since}", now.time, now.slices)
        )  # fmt: skip

    def _freed_twice(self, page: int, now: MarkMoment) -> None:
        rid, before = self.freed.get(page, ("", None))
        story = f"page {page} was freed {now}, although nobody held it"
        if before is not None:
            first = f"when it was {rid}'s" if rid else "when the prefix cache gave it up"
            story = f"page {page} was freed twice: {before}, {first}, and again {now}"
        slices = (*(before.slices if before else ()), *now.slices)
        leak = Leak("page", f"page {page}", "freed", rid, story, now.time, slices)
        self.leaks.append(leak)

    def _freed_under(self, page: int, lease: HeldLease, now: MarkMoment) -> None:
        story = f"page {page} was freed {now}, although it was allocated to {lease.history}"
        slices = (*lease.slices, *now.slices)
        self.leaks.append(Leak("page", f"page {page}", "freed", lease.rid, story, now.time, slices))

    def _freed_in_cache(self, page: int, now: MarkMoment) -> None:
        story = f"page {page} was freed {now}, although node {self.cached[page]} still has it"
        self.leaks.append(Leak("page", f"page {page}", "freed", "", story, now.time, now.slices))


# -- Future slots: which step and whose row each was given to last, and who reads it ---------------


class Ask(NamedTuple):
    """What a row has to read: the slot that step ``giver`` got for its lease.

    ``must`` is False where that step has come back: then the host may know the token, and need not.
    """

    lease: HeldLease | None
    giver: int
    must: bool


class SlotRead(NamedTuple):
    """A future slot that a step reads for a lease, or for nobody; ``should`` is the right one.

    ``sentence`` says what is wrong, or nothing. ``slot`` is None where one should have been read.
    """

    step: int
    lease: HeldLease | None
    slot: int | None
    should: int | None
    sentence: str
    moment: MarkMoment


class SlotBook:
    """A future slot is a step's until another one gets it. Nothing gives one back."""

    def __init__(self) -> None:
        self.owner: dict[int, tuple[int, HeldLease | None]] = {}  # slot -> step, lease
        self.given: dict[int, dict[HeldLease | None, int]] = {}  # step -> lease -> slot
        self.misread: list[SlotRead] = []

    def of(self, step: int) -> list[int]:
        """The slots that are still a step's."""
        return [slot for slot, (owner, _) in self.owner.items() if owner == step]

    def bind(
        self,
        step: int,
        asks: Sequence[Ask],
        slots: Sequence[int],
        reads: Sequence[int],
        now: MarkMoment,
    ) -> None:
        """A step gets ``slots``, row by row, and will read ``reads``, which were others'."""
        if asks:
            found = self.reads_of(step, asks, reads, now)
            self.misread += [item for item in found if item.sentence]
        if len(asks) == len(slots):
            given = self.given[step] = {
                ask.lease: slot for ask, slot in zip(asks, slots, strict=True)
            }
            self.owner |= {slot: (step, lease) for lease, slot in given.items()}

    def reads_of(
        self, step: int, asks: Sequence[Ask], reads: Sequence[int], now: MarkMoment
    ) -> list[SlotRead]:
        """Which row reads which slot: a step reads them in the order of its rows."""
        left, found = list(reads), list[SlotRead]()
        must = sum(ask.must for ask in asks)
        for ask in asks:
            should = self.given.get(ask.giver, {}).get(ask.lease)
            may = should is not None and left[:1] == [should] and len(left) > must
            if ask.must or may:
                slot = left.pop(0) if left else None
                found.append(self._judged(step, ask, slot, should, now))
            must -= ask.must
        nobody = Ask(None, 0, False)
        return found + [self._judged(step, nobody, slot, None, now) for slot in left]

    def _judged(
        self, step: int, ask: Ask, slot: int | None, should: int | None, now: MarkMoment
    ) -> SlotRead:
        whose = f" for {ask.lease.rid}" if ask.lease else ""
        right = f"future slot {should}, which step {ask.giver} was given{whose}"
        right = right if should is not None else ""
        story = ""
        if slot is None and right:
            story = f"step {step} reads no future slot{whose}; it should have read {right}"
        elif slot is not None and self.owner.get(slot) != (ask.giver, ask.lease):
            story = f"step {step} reads future slot {slot}{whose}, which {self._owner_of(slot)}"
            if slot == should:
                story += f" since step {ask.giver} was given it{whose}: that token is lost"
            elif right:
                story += f"; it should have read {right}"
        return SlotRead(step, ask.lease, slot, should, story, now)

    def _owner_of(self, slot: int) -> str:
        """Whose a slot is."""
        giver, lease = self.owner.get(slot, (0, None))
        if not giver:
            return "no step was given"
        return f"step {giver} was given" + (f" for {lease.rid}" if lease else "")


# -- One scheduler's books, kept from the marks of a trace: who holds what, mark by mark -----------
#
# It hears ``row alloc``, ``row free``, ``row hold``, ``row let go``, ``page alloc``, ``page
# disown``, ``page free``, ``radix add``, ``radix split``, ``radix evict``, ``radix lock``, ``block
# add``, ``block evict``, ``block lock``, ``insert``, ``finish``, ``retraction``, ``commit``,
# ``tokens``, ``future slots`` and ``wait``. What can't be, it notes at once; what must not stay,
# ``audit.py`` looks for between two steps.

ROOT = 0  # of the radix tree: it has no pages, and a lock on it keeps nothing


class Ledger:
    """Who holds what after the marks that it has heard. ``leaks`` are what was wrong so far."""

    def __init__(self) -> None:
        self.leaks: list[Leak] = []
        self.pages = PageBook(self.leaks)
        self.slots = SlotBook()
        self.by_row: dict[int, HeldLease] = {}
        self.last_in: dict[int, HeldLease] = {}  # by row, whose it was when it was freed
        self.newest: dict[str, HeldLease] = {}  # of each request
        self.ending: dict[HeldLease, None] = {}  # closed or released, and not seen to be empty
        self.whose: HeldLease | None = None  # whoever takes or leaves the next locks
        self.lock_log: list[
            tuple[int, int, HeldLease, MarkMoment]
        ] = []  # node, delta, by whom, when
        self.commits: dict[int, list[HeldLease | None]] = {}  # by step, row by row
        self.chunks: dict[int, list[int]] = {}  # by step, the rows whose sample is no token
        self.in_flight: dict[int, MarkMoment] = {}  # steps, with when they were committed
        self.waited: set[int] = set()  # steps for whose inputs the host has waited

    def hear(self, mark: Mark, now: MarkMoment) -> None:
        """Let happen what a mark says."""
        of, name = mark.attrs, mark.name
        if name.startswith(("page ", "kv pool", "future slots")):
            self._on_memory(mark, now)
        elif name == "row alloc":
            self._open(str(of["rid"]), int(of["row"]), now)
        elif name in ("row free", "row hold", "row let go"):
            self._on_row(name, int(of["row"]), now)
        elif name == "finish":
            self._close(str(of["rid"]), str(of["reason"]), now)
        elif name == "retraction":
            self._close(str(of["rid"]), name, now)
        elif name == "commit":
            self.chunks[int(of["step"])] = numbers(of.get("chunks", ""))
            self._commit(int(of["step"]), numbers(of["rows"]), now)
        elif name == "tokens":
            self.in_flight.pop(int(of["step"]), None)
        elif name == "wait" and (of["reason"], of["op"]) == ("speculation", "forward"):
            self.waited.add(int(of["step"]))
        else:
            self._on_tree(mark, now)

    def is_named(self, lease: HeldLease) -> bool:
        """Whether a step in flight or a transfer names it."""
        return lease.last_step in self.in_flight or lease.num_transfers > 0

    def giver_of(self, lease: HeldLease | None) -> int:
        """The step whose sample is its input in its newest step, if the host did not know it.

        The host knows what has come back, and what it has waited for (``worker/verify.py``);
        0 if it knew it, or if there is none.
        """
        step = lease.step_before if lease else 0
        is_chunk = lease is not None and lease.row in self.chunks.get(step, [])
        knew = is_chunk or lease is None or lease.last_step in self.waited
        return step if step in self.in_flight and not knew else 0

    def ask(self, lease: HeldLease | None) -> Ask:
        """What a row of the newest step has to read from the device."""
        return Ask(lease, lease.step_before if lease else 0, bool(self.giver_of(lease)))

    def _on_memory(self, mark: Mark, now: MarkMoment) -> None:
        of, pages = mark.attrs, numbers(mark.attrs.get("pages", ""))
        if mark.name == "kv pool":
            self.pages.knows_all = True
        elif mark.name == "page alloc":
            rid, row = str(of["rid"]), int(of["row"])
            self.pages.take(self.by_row.get(row) or self._open(rid, row, now), pages, now)
        elif mark.name == "page disown":
            self.pages.disown(pages, now)
        elif mark.name == "page free":
            self.pages.free(pages, now)
        elif mark.name == "future slots":
            step = int(of["step"])
            slots, reads = numbers(of["slots"]), numbers(of["reads"])
            asks = [self.ask(lease) for lease in self.commits.get(step, [])]
            self.slots.bind(step, asks, slots, reads, now)

    def _open(self, rid: str, row: int, now: MarkMoment) -> HeldLease:
        if before := self.by_row.get(row):
            self.leaks.append(
                Leak("row", f"row {row}", "given", before.rid,
                     f"row {row} was handed out to {rid} {now} while it was still {before.rid}'s, "
                     f"to whom it was allocated: {before.history}",
                     now.time, (*before.slices, *now.slices))
            )  # fmt: skip
            self.ending[before] = None
        lease = self.by_row[row] = self.newest[rid] = self.whose = HeldLease(rid, row, now)
        return lease

    def _on_row(self, name: str, row: int, now: MarkMoment) -> None:
        lease = self.by_row.get(row)
        if lease is None:
            self._freed_again(row, now)
        elif name == "row free":
            self.last_in[row] = self.by_row.pop(row)
            lease.released, self.whose = now, lease
            self.ending[lease] = None
        else:
            lease.num_transfers += 1 if name == "row hold" else -1

    def _freed_again(self, row: int, now: MarkMoment) -> None:
        story, before = f"row {row} was freed {now}, although nobody held it", self.last_in.get(row)
        if before is not None:
            first = f"{before.released}, when it was {before.rid}'s"
            story = f"row {row} was freed twice: {first}, and again {now}"
        rid, slices = (before.rid, before.slices) if before else ("", ())
        leak = Leak("row", f"row {row}", "freed", rid, story, now.time, (*slices, *now.slices))
        self.leaks.append(leak)

    def _close(self, rid: str, why: str, now: MarkMoment) -> None:
        lease = self.newest.get(rid)
        if lease is not None and lease.closed is None and lease.released is None:
            lease.closed, lease.why = now, why
            self.ending[lease] = None

    def _commit(self, step: int, rows: list[int], now: MarkMoment) -> None:
        leases = self.commits[step] = [self.by_row.get(row) for row in rows]
        for row, lease in zip(rows, leases, strict=True):
            if lease is not None:
                lease.step_before, lease.last_step = lease.last_step, step
            else:
                story = f"step {step} names row {row}, which nobody holds {now}"
                leak = Leak("row", f"row {row}", "used", "", story, now.time, now.slices)
                self.leaks.append(leak)
        self.in_flight[step] = now

    def _on_tree(self, mark: Mark, now: MarkMoment) -> None:
        of, name = mark.attrs, mark.name
        if name == "insert":
            self.whose = self.newest.get(str(of["rid"]))
        elif name == "radix add":
            self.pages.add(int(of["node"]), numbers(of.get("page_ids", "")))
        elif name == "radix split":
            self.pages.split(int(of["node"]), int(of["child"]), int(of["pages"]))
        elif name == "radix evict":
            self.pages.evict(int(of["node"]), now)
        elif name in ("block add", "block evict"):
            for page in numbers(of["pages"]):
                if name == "block add":
                    self.pages.add(page, [page])  # each is a node of its own
                else:
                    self.pages.evict(page, now)
        elif name == "block lock" and self.whose:
            for page in numbers(of["pages"]):
                self.whose.lock(page, int(of["delta"]), now)
                self.lock_log.append((page, int(of["delta"]), self.whose, now))
        elif name == "radix lock" and self.whose and int(of["node"]) != ROOT:
            node, delta = int(of["node"]), int(of["delta"])
            self.whose.lock(node, delta, now)
            self.lock_log.append((node, delta, self.whose, now))


# -- Looks through the books: between two steps, and when the trace is over ------------------------


def settle(ledger: Ledger, now: MarkMoment) -> None:
    """Between two steps: whoever has ended holds nothing that nobody names."""
    ledger.pages.find_lost(now)
    for lease in list(ledger.ending):
        if ledger.is_named(lease):
            continue
        if lease.released is None:
            lease.overdue = lease.overdue or now
            continue
        del ledger.ending[lease]
        if lease.overdue is not None:
            fate = f"and nobody named it any more, but it was released only {lease.released}"
            report(ledger, lease, fate, [("row", f"row {lease.row}")])
        report(ledger, lease, f"and its row was freed {lease.released}, but this was not")


def close(ledger: Ledger, now: MarkMoment, sees_steps: bool) -> list[Leak]:
    """The trace is over; everything that was wrong, in order of time.

    ``sees_steps`` says whether the trace tells which steps came back.
    """
    settle(ledger, now)
    for lease in dict.fromkeys([*ledger.ending, *ledger.by_row.values()]):
        fate = "and the trace is over"
        if lease.released is not None:
            fate = f"and its row was freed {lease.released}, but this was not"
        elif lease.closed is not None:
            fate = "and its lease was never released"
        lease.overdue = lease.overdue or now
        report(ledger, lease, fate)
    for step, committed in ledger.in_flight.items() if sees_steps else ():
        _report_step(ledger, step, committed, now)
    return sorted(ledger.leaks, key=lambda leak: leak.time)


def report(
    ledger: Ledger, lease: HeldLease, fate: str, rest: list[tuple[str, str]] | None = None
) -> None:
    """Whatever a lease still holds, or what it held for too long: a leak each."""
    seen = lease.overdue or lease.released or lease.opened
    for resource, what in lease.rest if rest is None else rest:
        verb = "were allocated to" if what.startswith("pages") else "was allocated to"
        verb = "was taken for" if resource == "lock" else verb
        history = lease.lock_history if resource == "lock" else lease.history
        is_late = resource == "lock" and lease.released
        duty = ": it should have been unlocked then" if is_late else ""
        story = f"{what} {verb} {history}, {fate}{duty}"
        ledger.leaks.append(Leak(resource, what, "held", lease.rid, story, seen.time, lease.slices))


def _report_step(ledger: Ledger, step: int, committed: MarkMoment, now: MarkMoment) -> None:
    """A step that never came back, with the future slots that wait for its tokens."""
    slots = ledger.slots.of(step)
    story = f"step {step} was committed {MarkMoment(committed.time)} and never came back"
    story += f", and so {plural('future slot', slots)} has no token" if slots else ""
    ledger.leaks.append(
        Leak("step", f"step {step}", "pending", "", story, now.time, committed.slices)
    )


# -- Ops that nobody waited for, and threads that are still in a call, from a trace's program ------


def find_pending(trace: Trace) -> list[Leak]:
    """What was launched and never ended, or ended without anybody who could know.

    An op's end is known to whoever waits for it, or for anything that comes after it on its lane;
    in the end the schedulers have to know every one. A call that a thread has begun must end. Of a
    file that stops before its requests have ended nothing is told: it was in flight.
    """
    return list(_pending(trace)) if is_complete(trace) else []


def is_complete(trace: Trace) -> bool:
    """Whether the run is over, as far as the file says: each request of a slice has ``finish``."""
    ended = {mark.attrs.get("rid") for mark in trace.marks if mark.name == "finish"}
    return bool(ended) and all(rid in ended for item in trace.slices for rid in item.rids)


def _pending(trace: Trace) -> Iterator[Leak]:
    slices = {item.id: item for item in trace.slices}
    begun = {act.op: act for act in trace.program if act.kind == "begin"}
    ends = {act.op for act in trace.program if act.kind == "end"}
    order = order_of(trace)
    if order.stuck:  # a wait that never ends is told elsewhere: go on without it
        ever = ends | {act.op for act in trace.program if act.kind == "say"}
        order = PlayedOrder([a for a in trace.program if a.kind != "wait" or a.op in ever])
    last = [done for lane, done in order.last.items() if is_main(lane)]
    for launch in (act for act in trace.program if act.kind == "launch"):
        begin, end = begun.get(launch.op), order.ended.get(launch.op)
        ran = slices.get(launch.op)
        if begin is not None and end is not None and any(map(end.is_before, last)):
            continue
        if begin is not None and launch.op not in ends:
            yield _thread(begin, ran, trace.end)
        else:
            yield _op(launch, begin, ran, slices.get(launch.during), trace.end)


def is_main(lane: str) -> bool:
    """Whether a lane is a scheduler's, and not one of its threads."""
    return is_host(lane) and not lane.endswith("thread")


def _thread(begin: Act, ran: Slice | None, end: int) -> Leak:
    story = f"{begin.lane} began a call (slice {begin.op}), which never ended"
    return Leak("thread", begin.lane, "pending", "", story, end, (begin.op,) if ran else ())


def _op(
    launch: Act, begin: Act | None, ran: Slice | None, launcher: Slice | None, end: int
) -> Leak:
    """An op that ended, as far as the trace says, but nobody knows; or a call that never began."""
    name = f"the {ran.name} of step {ran.step}" if ran and ran.step else f"op {launch.op}"
    by = f"{launch.lane} launched {name}"
    by += f" in its {launcher.name} of step {launcher.step}" if launcher and launcher.step else ""
    lane = f" on the {lane_words(begin.lane)}" if begin else ""
    fate = "and it never ran" if begin is None else "and nobody has waited for it"
    known = tuple(item.id for item in (launcher, ran) if item)
    rid = ran.rids[0] if ran and len(ran.rids) == 1 else ""
    return Leak("op", name, "pending", rid, f"{by}{lane}, {fate}", end, known)


NEEDED = {
    "row alloc": "rows of the request table, and who held what",
    "page alloc": "pages",
    "radix lock": "locks on the prefix cache (there may be none)",
    "finish": "what is held by a request that has ended, and ops that nobody waited for",
    "commit": "what is held between two steps, and which steps came back: only the end",
    "tokens": "what is held between two steps, and which steps came back: only the end",
}
"""By mark, what nobody can say without it."""


def find_leaks(trace: Trace) -> list[Leak]:
    """Everything that leaks, in order of time; ``not_checked`` says what could not be seen."""
    found = [leak for side in sides(trace) for leak in leaks_of(trace, side)]
    return sorted([*found, *find_pending(trace)], key=lambda leak: leak.time)


def not_checked(trace: Trace) -> list[str]:
    """What a trace does not tell: one sentence for all marks; empty if it tells everything."""
    names = {mark.name for mark in trace.marks}
    absent = {name: what for name, what in NEEDED.items() if name not in names}
    said = []
    if absent:
        marks, about = " or ".join(map(repr, absent)), "; ".join(dict.fromkeys(absent.values()))
        said.append(f"The trace has no mark {marks}, so nothing is known about {about}.")
    if not trace.program:
        said.append(
            "The trace has no program, so nothing is known about ops that nobody waited for and "
            "threads that are still in a call."
        )
    elif "finish" in names and not is_complete(trace):
        said.append(
            "Not every request ends in the trace, so nothing is known about ops that nobody waited "
            "for: they may be in flight."
        )
    return said


def leaks_of(trace: Trace, side: str) -> list[Leak]:
    """What leaks of one scheduler's memory."""
    ledger, now, knows = Ledger(), MarkMoment(0), sees_steps(trace)
    for mark, now in moments(trace, side):
        ledger.hear(mark, now)
        if knows and mark.name in ("commit", "tokens"):
            settle(ledger, now)
    return close(ledger, MarkMoment(trace.end, 0, now.after), knows)


def sees_steps(trace: Trace) -> bool:
    """Whether the trace says when steps are committed and when they come back."""
    return {"commit", "tokens"} <= {mark.name for mark in trace.marks}
