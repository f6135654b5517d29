"""Leases on memory, replayed: when each was opened, held, closed and released."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ...trace import Mark, Trace
from ..views.marks import named, number, word

ENDS = ("finish", "retraction")  # a request lets go of its memory
CHANGES = ("row alloc", "admit", "row hold", "row let go", *ENDS, "row free")
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
    for mark in named(trace, *CHANGES):
        leases.apply(mark)
    for lease in leases.by_row.values():
        lease.end = trace.end + 1
    return leases.all
