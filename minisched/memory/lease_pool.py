"""Leases on memory: opened, grown, closed, and released when the rule for it says so."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Lease
from .free_rule import RULES, Steps
from .page_allocator import PageAllocator
from .page_cache import Found, PageCache
from .req_to_token import ReqToTokenPool


class LeasePool:
    """Opens leases on cached prefixes, lets them grow, and takes them back in the end.

    A closed lease waits for the steps that name it, so that it is right for every loop and every
    number of streams; ``free_rule`` puts an original's rule in its place. ``cache`` is None where
    there is no prefix cache.
    """

    def __init__(
        self,
        allocator: PageAllocator,
        table: ReqToTokenPool,
        cache: PageCache | None = None,
        free_rule: str = "lease",
    ) -> None:
        self.allocator = allocator
        self.table = table
        self.cache = cache
        self.may_free = RULES[free_rule]
        self.launched_step = 0  # the last one committed
        self.returned_step = 0  # the last one that has come back; they come back in order
        self.returning: dict[Lease, None] = {}  # closed, but a launched step still names them
        self.retiring: dict[Lease, None] = {}  # open, with pages that one may still read
        self.num_released = 0  # leases so far
        self.num_retired = 0  # times that pages of open leases have come back
        self.frees_at_once = free_rule == "at_once"

    @property
    def available_pages(self) -> int:
        """Pages that can be had now: free ones, and those that the cache would give up."""
        evictable = self.cache.evictable_size if self.cache else 0
        return self.allocator.available_pages + evictable

    @property
    def pages_returning(self) -> int:
        """Pages that can be had once what is in flight has come back."""
        return sum(map(self.pages_given_back, self.returning))

    @property
    def is_idle(self) -> bool:
        """Whether no lease is left, open or on its way back."""
        return self.table.available_size == self.table.size

    def pages_given_back(self, lease: Lease) -> int:
        """Pages that can be had once ``lease`` is released: its own, and what it alone locks."""
        pages = len(lease.pages) - lease.shared_pages
        if self.cache is not None and lease.node is not None:
            pages += self.cache.num_pages_locked(lease.node, 1)
        return pages

    def pages_to_lock(self, match: Found | None) -> int:
        """Pages of the match that nobody uses yet: locking takes them out of what can be had."""
        if self.cache is None or match is None:
            return 0
        return self.cache.num_pages_locked(match.node, 0)

    def pages_to_start(self, match: Found | None, length: int) -> int:
        """Pages that must be there for a lease on ``match`` that is to hold ``length`` positions.

        Those that it lacks, and ``pages_to_lock``.
        """
        if self.cache is None or match is None:
            return self.allocator.pages_for(length)
        lacking = max(0, self.allocator.pages_for(length) - len(match.pages))
        return lacking + self.pages_to_lock(match)

    def open(self, match: Found | None = None, rid: str = "") -> Lease:
        """A lease on a free row, which begins with a cached prefix; that is locked from now on."""
        lease = self.table.alloc(rid)
        if self.cache is not None and match is not None:
            self.cache.inc_lock_ref(match.node)
            lease.node = match.node
            lease.pages = list(match.pages)
            lease.shared_pages = len(match.pages)
            lease.settled_len = len(match.pages) * self.allocator.page_size
        return lease

    def pages_lacking(self, lease: Lease, length: int) -> int:
        """Pages that a lease would need on top of its own to hold ``length`` positions."""
        return max(0, self.allocator.pages_for(length) - len(lease.pages))

    def extend(self, lease: Lease, length: int) -> tuple[int, Sequence[int]]:
        """Let a lease hold ``length`` positions, at the cost of what is cached if need be.

        Gives the pages that the device's page table lacks for it, and where they begin.
        """
        at, pages = lease.sent_pages, lease.pages
        if length > len(pages) * self.allocator.page_size:
            self.reserve(lease, length)
        elif at == len(pages):
            return at, ()
        lease.sent_pages = len(pages)
        return at, pages[at:]

    def reserve(self, lease: Lease, length: int) -> None:
        """The same while a step is only planned: the device hears of it with the step."""
        if short := self.pages_lacking(lease, length):
            self._evict(short - self.allocator.available_pages)
            self.allocator.alloc(lease, short)

    def retire(self, lease: Lease, pages: list[int]) -> None:
        """Pages that a lease no longer needs; free once what is launched has come back.

        Or at once, where the rule says so: the step that reads the row next lists others.
        """
        lease.retired.append((lease.last_step, pages))
        self.retiring[lease] = None
        self._free_retired(lease)

    def is_settled(self, lease: Lease) -> bool:
        """Whether every step that names it has come back."""
        return lease.last_step <= self.returned_step

    def came_back(self, step: int) -> None:
        """A step has been processed: free what waited for it, and look at nothing else.

        Raises:
            RuntimeError: it is not the next one; streams run in order, and so do their results.
        """
        if step != self.returned_step + 1:
            raise RuntimeError(f"step {step} came back, but {self.returned_step + 1} is next")
        self.returned_step = step
        for lease in list(self.retiring):
            self._free_retired(lease)
        for lease in list(self.returning):
            self.release(lease)

    def hold(self, lease: Lease) -> None:
        """A transfer reads or writes its pages: until it ends, nobody else may have them."""
        lease.num_transfers += 1
        self.table.mark_transfer("row hold", lease)

    def let_go(self, lease: Lease) -> None:
        """A transfer has ended."""
        lease.num_transfers -= 1
        self.table.mark_transfer("row let go", lease)
        if lease in self.retiring:
            self._free_retired(lease)
        if lease in self.returning:
            self.release(lease)

    def close(self, lease: Lease) -> None:
        """Its request lets go of it."""
        self.returning[lease] = None
        self.release(lease)

    def release(self, lease: Lease) -> None:
        """Free its pages and its row and unlock its prefix, if the rule says that it is time."""
        steps = Steps(self.launched_step, self.returned_step)
        if lease.num_transfers or not self.may_free(lease, steps):
            return
        del self.returning[lease]
        lease.is_released = True
        self.num_released += 1
        own: Sequence[int] = lease.pages[lease.shared_pages :]
        free = own if self.cache is None else self.cache.retain(own)
        if len(free) < len(own):
            self.allocator.disown(own)
        self.allocator.free(free, lease)
        self.table.free(lease)
        if self.cache is not None and lease.node is not None:
            self.cache.dec_lock_ref(lease.node)
        lease.pages, lease.shared_pages, lease.node = [], 0, None

    def make_free(self, num_pages: int) -> None:
        """Let the cache give up pages until so many are free, or nothing can be given up."""
        self._evict(num_pages - self.allocator.available_pages)

    def _evict(self, num_pages: int) -> None:
        if num_pages > 0 and self.cache is not None:
            self.allocator.free(self.cache.evict(num_pages))

    def _free_retired(self, lease: Lease) -> None:
        if lease.num_transfers:
            return  # it may still be reading them
        returned = self.launched_step if self.frees_at_once else self.returned_step
        while lease.retired and lease.retired[0][0] <= returned:
            _, pages = lease.retired.pop(0)
            self.allocator.disown(pages)
            self.allocator.free(pages)
            self.num_retired += 1
        if not lease.retired:
            del self.retiring[lease]
