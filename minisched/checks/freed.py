"""The law *ownership* for frees: memory waits for launched steps and transfers that refer to it.

On one stream a page that is freed too early does no harm, because its next owner writes later. A
second stream, or a transfer, has no such order. So each free of a page or row is compared with the
steps that listed it at their commit. The rule ``at_once`` promises nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Lease, ScheduleBatch
from ..engine.engine import Engine
from ..scheduler.pd import TransferScheduler


class Freed:
    """Follows the frees of one scheduler; ``early`` are the sentences so far."""

    def __init__(self, engine: Engine) -> None:
        self.early: list[str] = []
        self.scheduler = engine.scheduler
        self.rule = self.scheduler.config.in_force.free_rule
        self.step_of_page: dict[int, int] = {}  # the newest step that lists it
        self.step_of_row: dict[int, int] = {}
        self.sent: dict[Lease, set[int]] = {}  # pages that a transfer may read or write
        allocator, table = self.scheduler.allocator, self.scheduler.table
        free_pages, free_row = allocator.on_free, table.on_free

        def freed(pages: Sequence[int], lease: Lease | None) -> None:
            """Judge the free of pages."""
            for page in pages:
                self.judge(f"page {page}", self.step_of_page.get(page, 0))
            for held, sent in self.sent.items():
                if kept := sent.intersection(pages):
                    self.early.append(
                        f"page {min(kept)} is freed while a transfer of {held.rid} may use it"
                    )
            free_pages(pages, lease)

        def freed_row(lease: Lease) -> None:
            """Judge the free of a row."""
            self.judge(f"row {lease.row}", self.step_of_row.get(lease.row, 0))
            free_row(lease)

        allocator.on_free, table.on_free = freed, freed_row
        if isinstance(self.scheduler, TransferScheduler):
            self.follow_transfers(self.scheduler)

    def follow_transfers(self, scheduler: TransferScheduler) -> None:
        """Keep the pages of each lease that a transfer holds."""
        hold, let_go = scheduler.hold, scheduler.let_go

        def held(lease: Lease) -> None:
            """Keep the pages that a lease has now."""
            self.sent.setdefault(lease, set()).update(lease.pages)
            hold(lease)

        def ended(lease: Lease) -> None:
            """Forget them once no transfer is left."""
            if scheduler.num_transfers[lease] <= 1:
                self.sent.pop(lease, None)
            let_go(lease)

        scheduler.hold, scheduler.let_go = held, ended  # type: ignore[method-assign]

    def look(self, batch: ScheduleBatch) -> None:
        """Keep the pages and rows that a step lists at its commit."""
        for lease in batch.leases:
            self.step_of_row[lease.row] = batch.step
            self.step_of_page.update(dict.fromkeys(lease.pages, batch.step))

    def judge(self, what: str, step: int) -> None:
        """Record a free of something that a step in flight refers to.

        The rule ``deferred`` waits for the newest step alone.
        """
        leases = self.scheduler.leases
        launched, returned = leases.launched_step, leases.returned_step
        waits = self.rule == "lease" or (self.rule == "deferred" and launched - returned <= 1)
        if waits and step > returned:
            self.early.append(
                f"{what} is freed after step {returned} has returned, but step {step} refers to it"
            )
