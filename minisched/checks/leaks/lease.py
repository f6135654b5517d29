"""A request's row and what hangs on it, as the marks of a trace tell it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...trace.program import to_text
from .leak import plural
from .moment import Moment


@dataclass(eq=False)
class HeldLease:
    """A row of the request table, the pages and the locks that belong to it.

    It is *closed* when its request ends or is retracted, and *released* when its row is freed. Both
    ``closed`` and ``released`` are None before. ``overdue`` is the first moment at which it was
    closed, and neither a step in flight nor a transfer named it.
    """

    rid: str
    row: int
    opened: Moment
    pages: dict[int, Moment] = field(default_factory=dict)  # its own, in the order of positions
    locks: Counter[int] = field(default_factory=Counter)  # by node of the radix tree
    num_transfers: int = 0
    locked: dict[int, Moment] = field(default_factory=dict)  # since when, by node
    last_step: int = 0  # the newest that names it
    step_before: int = 0  # and the one before that
    closed: Moment | None = None
    why: str = ""  # it was closed: stop, length, abort, error, retraction
    released: Moment | None = None
    overdue: Moment | None = None

    @property
    def rest(self) -> list[tuple[str, str]]:
        """(resource, name) of all that it still holds."""
        rows = [("row", f"row {self.row}")] if self.released is None else []
        pages = [("page", plural("page", to_text(self.pages)))] if self.pages else []
        locked = [node for node, count in self.locks.items() if count]
        locks = [("lock", f"a lock on {plural('node', to_text(locked))}")] if locked else []
        return [*pages, *rows, *locks]

    @property
    def history(self) -> str:
        """``r1 in step 2 (..); r1 ended (stop) ..``: who got it when, and what became of them."""
        taken = min([*self.pages.values(), self.opened], key=lambda moment: moment.time)
        return f"{self.rid} {taken}; {self.end}"

    def lock(self, node: int, delta: int, now: Moment) -> None:
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
