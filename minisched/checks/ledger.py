"""One scheduler's books, kept from the marks of a trace: who holds what, mark by mark.

It hears ``row alloc``, ``row free``, ``row hold``, ``row let go``, ``page alloc``, ``page disown``,
``page free``, ``radix add``, ``radix split``, ``radix evict``, ``radix lock``, ``insert``,
``finish``, ``retraction``, ``commit``, ``tokens`` and ``future slots``. What can't be, it notes at
once; what must not stay, ``ledger_audit.py`` looks for between two steps.
"""

from __future__ import annotations

from ..trace import Mark
from .leak import Leak
from .ledger_lease import HeldLease
from .ledger_moment import Moment
from .ledger_pages import PageBook
from .ledger_slots import SlotBook

ROOT = 0  # of the radix tree: it has no pages, and a lock on it keeps nothing


class Ledger:
    """Who holds what after the marks that it has heard. ``leaks`` are what was wrong so far."""

    def __init__(self) -> None:
        self.leaks: list[Leak] = []
        self.pages = PageBook(self.leaks)
        self.slots = SlotBook(self.leaks)
        self.by_row: dict[int, HeldLease] = {}
        self.newest: dict[str, HeldLease] = {}  # of each request
        self.ending: dict[HeldLease, None] = {}  # closed or released, and not seen to be empty
        self.whose: HeldLease | None = None  # whoever takes or leaves the next locks
        self.commits: dict[int, list[HeldLease | None]] = {}  # by step, row by row
        self.chunks: dict[int, list[int]] = {}  # by step, the rows whose sample is no token
        self.in_flight: dict[int, Moment] = {}  # steps, with when they were committed

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
        else:
            self._on_tree(mark, now)

    def is_named(self, lease: HeldLease) -> bool:
        """Whether a step in flight or a transfer names it."""
        return lease.last_step in self.in_flight or lease.num_transfers > 0

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
            self.slots.bind(step, self.commits.get(step, []), slots, reads, now)

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
            story = f"row {row} was freed {now}, although nobody held it"
            self.leaks.append(Leak("row", f"row {row}", "freed", "", story, now.time, now.slices))
        elif name == "row free":
            del self.by_row[row]
            lease.released, self.whose = now, lease
            self.ending[lease] = None
        else:
            lease.num_transfers += 1 if name == "row hold" else -1

    def _close(self, rid: str, why: str, now: Moment) -> None:
        lease = self.newest.get(rid)
        if lease is not None and lease.closed is None and lease.released is None:
            lease.closed, lease.why = now, why
            self.ending[lease] = None

    def _commit(self, step: int, rows: list[int], now: Moment) -> None:
        leases = self.commits[step] = [self.by_row.get(row) for row in rows]
        for row, lease in zip(rows, leases, strict=True):
            if lease is not None:
                lease.last_step = step
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
        elif name == "radix lock" and self.whose and int(of["node"]) != ROOT:
            self.whose.locks[int(of["node"])] += int(of["delta"])


def numbers(text: object) -> list[int]:
    """The whole numbers in a mark's text."""
    return [int(word) for word in str(text).split() if word.isdecimal()]
