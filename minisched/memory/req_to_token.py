"""The request table: a row for each request that holds memory."""

from __future__ import annotations

from collections.abc import Callable

from ..core import Lease
from ..trace import NullRecorder, Recorder


class OwnershipError(RuntimeError):
    """A row or page was handed out while an open lease or a launched batch refers to it."""


class ReqToTokenPool:
    """The rows for requests with memory (SGLang ``mem_cache/memory_pool.py:ReqToTokenPool``).

    ``req_to_token[row].pages`` lists the pages of a row in position order. SGLang's tensor of this
    name lists KV slots; here that is the worker's ``page_table``. Row 0 is padding.
    """

    def __init__(self, size: int, recorder: Recorder | None = None) -> None:
        self.size, self.recorder = size, recorder or NullRecorder()
        self.req_to_token: dict[int, Lease] = {}
        self.free_rows = list(range(size, 0, -1))
        self.on_free: Callable[[Lease], None] = lambda lease: None

    @property
    def available_size(self) -> int:
        """Return the number of free rows."""
        return len(self.free_rows)

    def alloc(self, rid: str = "") -> Lease:
        """Open a lease on a free row.

        Raises:
            OwnershipError: the row's last lease is not released.
        """
        row = self.free_rows.pop()
        last = self.req_to_token.get(row)
        if last is not None and not last.is_released:
            raise OwnershipError(f"row {row} was handed out while its last lease is in use")
        lease = self.req_to_token[row] = Lease(row, rid)
        self.recorder.mark("row alloc", row=row, rid=rid)
        return lease

    def free(self, lease: Lease) -> None:
        """Free a row."""
        self.free_rows.append(lease.row)
        self.recorder.mark("row free", row=lease.row, rid=lease.rid)
        self.on_free(lease)
