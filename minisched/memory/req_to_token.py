"""The rows of the request table: one for each request that holds memory."""

from __future__ import annotations

from collections.abc import Callable

from ..core import Lease
from ..trace import NullRecorder, Recorder


class OwnershipError(RuntimeError):
    """A row or page was handed out while an open lease or a launched batch still names it."""


def unheard(lease: Lease) -> None:
    """Nobody wants to know whose row comes back."""


class ReqToTokenPool:
    """Rows of the request-to-token table (SGLang ``mem_cache/memory_pool.py:ReqToTokenPool``).

    ``size`` rows can be held at once; row 0 is padding and never handed out. What a row lists is
    ``Lease.pages`` on the host and the worker's page table on the device. ``on_free`` hears of
    every row that is taken back.
    """

    def __init__(self, size: int, recorder: Recorder | None = None) -> None:
        self.size = size
        self.recorder = recorder or NullRecorder()
        self.free_rows = list(range(size, 0, -1))
        self._owner: dict[int, Lease] = {}
        self.on_free: Callable[[Lease], None] = unheard

    @property
    def available_size(self) -> int:
        """Rows that are free."""
        return len(self.free_rows)

    def last_owner(self, row: int) -> Lease | None:
        """Whose a row was last."""
        return self._owner.get(row)

    def alloc(self, rid: str = "") -> Lease:
        """Open a lease on a free row, for the request ``rid``.

        Raises:
            OwnershipError: the row's last lease is not released.
        """
        row = self.free_rows.pop()
        last = self._owner.get(row)
        if last is not None and not last.is_released:
            raise OwnershipError(f"row {row} was handed out while its last lease is in use")
        lease = self._owner[row] = Lease(row, rid)
        self.recorder.mark("row alloc", row=row, rid=rid)
        return lease

    def free(self, lease: Lease) -> None:
        """Take a row back."""
        self.free_rows.append(lease.row)
        self.recorder.mark("row free", row=lease.row, rid=lease.rid)
        self.on_free(lease)

    def mark_transfer(self, name: str, lease: Lease) -> None:
        """Record that a row is held for a transfer, or no longer."""
        self.recorder.mark(name, row=lease.row, rid=lease.rid)
