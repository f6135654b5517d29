"""Which KV slot holds which position of which request: the host's copy of the page table."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Lease


class OwnershipError(RuntimeError):
    """A row or page was handed out while an open lease or a launched batch still names it."""


class ReqToTokenPool:
    """Rows of the request-to-token table (SGLang ``mem_cache/memory_pool.py:ReqToTokenPool``).

    ``size`` rows can be held at once; row 0 is padding and never handed out. ``req_to_token[row]``
    lists KV slots by position. The device has a table of its own, which the worker keeps.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.req_to_token: list[list[int]] = [[] for _ in range(size + 1)]
        self.free_rows = list(range(size, 0, -1))
        self._owner: dict[int, Lease] = {}

    @property
    def available_size(self) -> int:
        """Rows that are free."""
        return len(self.free_rows)

    def alloc(self) -> Lease:
        """Open a lease on a free row.

        Raises:
            OwnershipError: the row's last lease is not released.
        """
        row = self.free_rows.pop()
        last = self._owner.get(row)
        if last is not None and not last.is_released:
            raise OwnershipError(f"row {row} was handed out while its last lease is in use")
        lease = self._owner[row] = Lease(row)
        return lease

    def write(self, row: int, slots: Sequence[int]) -> None:
        """Append the KV slots of a row's next positions."""
        self.req_to_token[row].extend(slots)

    def free(self, lease: Lease) -> None:
        """Take a row back."""
        self.req_to_token[lease.row].clear()
        self.free_rows.append(lease.row)
