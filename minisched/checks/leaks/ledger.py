"""One scheduler's books, kept from the marks of a trace: who holds what, mark by mark.

It hears ``row alloc``, ``row free``, ``row hold``, ``row let go``, ``page alloc``, ``page disown``,
``page free``, ``radix add``, ``radix split``, ``radix evict``, ``radix lock``, ``block add``,
``block evict``, ``block lock``, ``insert``, ``finish``, ``retraction``, ``commit``, ``tokens``,
``future slots`` and ``wait``. What can't be, it notes at once; what must not stay, ``audit.py``
looks for between two steps.
"""

from __future__ import annotations

from ...trace import Mark
from .leak import Leak
from .lease import HeldLease
from .moment import Moment
from .pages import PageBook
from .slots import Ask, SlotBook

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
        self.lock_log: list[tuple[int, int, HeldLease, Moment]] = []  # node, delta, by whom, when
        self.commits: dict[int, list[HeldLease | None]] = {}  # by step, row by row
        self.chunks: dict[int, list[int]] = {}  # by step, the rows whose sample is no token
        self.in_flight: dict[int, Moment] = {}  # steps, with when they were committed
        self.waited: set[int] = set()  # steps for whose inputs the host has waited

    def hear(self, mark: Mark, now: Moment) -> None:
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

    def _on_memory(self, mark: Mark, now: Moment) -> None:
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

    def _open(self, rid: str, row: int, now: Moment) -> HeldLease:
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

    def _on_row(self, name: str, row: int, now: Moment) -> None:
        lease = self.by_row.get(row)
        if lease is None:
            self._freed_again(row, now)
        elif name == "row free":
            self.last_in[row] = self.by_row.pop(row)
            lease.released, self.whose = now, lease
            self.ending[lease] = None
        else:
            lease.num_transfers += 1 if name == "row hold" else -1

    def _freed_again(self, row: int, now: Moment) -> None:
        story, before = f"row {row} was freed {now}, although nobody held it", self.last_in.get(row)
        if before is not None:
            first = f"{before.released}, when it was {before.rid}'s"
            story = f"row {row} was freed twice: {first}, and again {now}"
        rid, slices = (before.rid, before.slices) if before else ("", ())
        leak = Leak("row", f"row {row}", "freed", rid, story, now.time, (*slices, *now.slices))
        self.leaks.append(leak)

    def _close(self, rid: str, why: str, now: Moment) -> None:
        lease = self.newest.get(rid)
        if lease is not None and lease.closed is None and lease.released is None:
            lease.closed, lease.why = now, why
            self.ending[lease] = None

    def _commit(self, step: int, rows: list[int], now: Moment) -> None:
        leases = self.commits[step] = [self.by_row.get(row) for row in rows]
        for row, lease in zip(rows, leases, strict=True):
            if lease is not None:
                lease.step_before, lease.last_step = lease.last_step, step
            else:
                story = f"step {step} names row {row}, which nobody holds {now}"
                leak = Leak("row", f"row {row}", "used", "", story, now.time, now.slices)
                self.leaks.append(leak)
        self.in_flight[step] = now

    def _on_tree(self, mark: Mark, now: Moment) -> None:
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


def numbers(text: object) -> list[int]:
    """The whole numbers in a mark's text."""
    return [int(word) for word in str(text).split() if word.isdecimal()]
