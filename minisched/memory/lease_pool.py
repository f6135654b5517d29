"""The one rule for giving memory back: closed, and named by no launched batch."""

from __future__ import annotations

from ..core import Lease
from .page_allocator import PageAllocator
from .req_to_token import ReqToTokenPool


class LeasePool:
    """Lets leases grow, and takes them back when nobody can touch them any more.

    The originals free at the finish, at once, and rely on the order of the stream (a later write
    comes after the zombie's). Here a lease waits for the steps that name it, so that the rule is
    right for every loop and every number of streams.
    """

    def __init__(self, allocator: PageAllocator, table: ReqToTokenPool) -> None:
        self.allocator = allocator
        self.table = table
        self.returning: list[Lease] = []  # closed, but a launched batch still names them

    @property
    def pages_returning(self) -> int:
        """Pages that will be free once what is in flight has come back."""
        return sum(len(lease.pages) for lease in self.returning)

    def extend(self, lease: Lease, length: int) -> tuple[int, list[int]]:
        """Let a lease hold ``length`` positions: where the new KV slots begin, and the slots."""
        slots_at = len(self.table.req_to_token[lease.row])
        slots = self.allocator.extend(lease, length)
        self.table.write(lease.row, slots)
        return slots_at, slots

    def close(self, lease: Lease) -> None:
        """Its request lets go of it."""
        lease.is_open = False
        self.returning.append(lease)
        self.release(lease)

    def came_back(self, lease: Lease) -> None:
        """A launched batch that named it has been processed."""
        lease.in_flight -= 1
        self.release(lease)

    def release(self, lease: Lease) -> None:
        """Free its pages and its row, if nobody can touch them."""
        if lease.is_released:
            self.returning.remove(lease)
            self.allocator.free(lease)
            self.table.free(lease)
