"""KV memory as the host sees it: rows and pages, their owners, and when they are released.

An admitted request gets a *lease*: a row of the request table, which begins with the pages of a
cached prefix, if there is one. It grows by a page whenever the request's tokens have filled the
last one (``LeasePool.extend``). It is closed when the request finishes or is retracted.

The host reads a stop token after the next step is launched, and that step may contain the request
once more. Its row is wasted, but it still writes to the pages. A *free rule* decides whether a
closed lease waits for such steps. On one stream it need not: the next owner's writes come later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from ..core import Lease, Request
from ..record import Value
from ..trace import NullRecorder, Recorder
from .block_pool import BlockPool
from .free_rules import FreeRule, RetiredPages, at_once, steps_returned
from .radix_cache import Match, RadixCache
from .req_to_token import OwnershipError, ReqToTokenPool

PageCache = RadixCache | BlockPool
"""Finds the pages of a prefix: a tree (SGLang) or a map from hashes to blocks (vLLM)."""


# -- Pages: free, or a lease's, or the prefix cache's ----------------------------------------------


class PageAllocator:
    """A free list of pages (SGLang ``mem_cache/allocator.py``, mini-sglang ``scheduler/cache.py``).

    A page is ``page_size`` adjacent KV slots. Page 0 is padding. ``owner`` maps a page to its
    newest lease; cached pages have none.
    """

    def __init__(
        self, num_pages: int, page_size: int = 1, recorder: Recorder | None = None
    ) -> None:
        self.num_pages, self.page_size = num_pages, page_size
        self.recorder = recorder or NullRecorder()
        self.free_pages = list(range(num_pages, 0, -1))
        self.owner: dict[int, Lease] = {}
        self.on_free: Callable[[Sequence[int], Lease | None], None] = lambda pages, lease: None

    def pages_for(self, num_tokens: int) -> int:
        """Return the number of pages that hold ``num_tokens`` positions."""
        return -(-num_tokens // self.page_size)

    def alloc(self, lease: Lease, num_pages: int) -> None:
        """Give ``lease`` more pages.

        Raises:
            OwnershipError: a page's last lease is not released.
        """
        for _ in range(num_pages):
            page = self.free_pages.pop()
            last = self.owner.get(page)
            if last is not None and not last.is_released:
                raise OwnershipError(f"page {page} was handed out while its last lease is in use")
            self.owner[page] = lease
            lease.pages.append(page)
        self._mark("page alloc", lease.pages[len(lease.pages) - num_pages :], lease)

    def disown(self, pages: Sequence[int]) -> None:
        """Take pages from their lease: the prefix cache owns them, or no lease needs them."""
        for page in pages:
            self.owner.pop(page, None)
        self._mark("page disown", pages)

    def free(self, pages: Sequence[int], lease: Lease | None = None) -> None:
        """Free pages of ``lease`` or of the prefix cache."""
        self.free_pages += pages
        self._mark("page free", pages)
        self.on_free(pages, lease)

    def _mark(self, name: str, pages: Sequence[int], lease: Lease | None = None) -> None:
        if self.recorder.is_on and pages:
            owner: dict[str, Value] = {"rid": lease.rid, "row": lease.row} if lease else {}
            self.recorder.mark(name, **owner, pages=tuple(pages))


# -- Leases on both --------------------------------------------------------------------------------

NEXT = attrgetter("device_len")  # the positions that a request's next step needs memory for


class LeasePool:
    """Opens leases on cached prefixes, lets them grow, and releases them."""

    def __init__(
        self,
        allocator: PageAllocator,
        table: ReqToTokenPool,
        cache: PageCache,
        may_free: FreeRule = steps_returned,
    ) -> None:
        self.allocator, self.table, self.cache = allocator, table, cache
        self.may_free = may_free
        self.is_held: Callable[[Lease], bool] = lambda lease: False  # by a transfer (``pd``)
        self.reach: Callable[[Request], int] = NEXT  # a feature may need more
        self.launched_step = 0  # the last one committed
        self.returned_step = 0  # the last one processed; steps return in order
        self.returning: dict[Lease, None] = {}  # closed, but a launched step refers to them
        self.retired = RetiredPages()
        self.num_released = 0  # leases so far

    @property
    def available_pages(self) -> int:
        """Return the number of pages available now: free or evictable."""
        return len(self.allocator.free_pages) + self.cache.evictable_size

    @property
    def pages_returning(self) -> int:
        """Return the number of pages that become available when the steps in flight return."""
        return sum(map(self.pages_given_back, self.returning))

    @property
    def is_idle(self) -> bool:
        """Return whether there is no lease, open or closed."""
        return self.table.available_size == self.table.size

    def pages_given_back(self, lease: Lease) -> int:
        """Return the pages that a release makes available: its own, and those only it locks."""
        pages = len(lease.pages) - lease.shared_pages
        if lease.node is not None:
            pages += self.cache.num_pages_locked(lease.node, 1)
        return pages

    def pages_lacking(self, lease: Lease, length: int) -> int:
        """Return the number of pages that a lease lacks to hold ``length`` positions."""
        return max(0, self.allocator.pages_for(length) - len(lease.pages))

    def pages_short(self, reqs: Sequence[Request]) -> int:
        """Return the pages that one more step of ``reqs`` lacks; 0 or less: none."""
        if len(reqs) <= len(self.allocator.free_pages) and self.reach is NEXT:
            return 0  # one position needs at most one page
        need = sum(self.pages_lacking(req.lease, self.reach(req)) for req in reqs if req.lease)
        return need - self.available_pages

    def open(self, match: Match | None = None, rid: str = "") -> Lease:
        """Open a lease on a free row that begins with a cached prefix, and lock that prefix."""
        lease = self.table.alloc(rid)
        if match is not None:
            self.cache.inc_lock_ref(match.node)
            lease.node = match.node
            lease.pages = list(match.pages)
            lease.shared_pages = len(match.pages)
            lease.settled_len = len(match.pages) * self.allocator.page_size
        return lease

    def extend(self, lease: Lease, length: int) -> tuple[int, Sequence[int]]:
        """Let a lease hold ``length`` positions; return an index and the pages to send from it."""
        self.reserve(lease, length)
        at, lease.sent_pages = lease.sent_pages, len(lease.pages)
        return at, lease.pages[at:]

    def reserve(self, lease: Lease, length: int) -> None:
        """Let a lease hold ``length`` positions; its pages are sent with the next step."""
        if lacking := self.pages_lacking(lease, length):
            self.make_free(lacking)
            self.allocator.alloc(lease, lacking)

    def make_free(self, num_pages: int) -> None:
        """Evict until ``num_pages`` are free, or nothing is evictable."""
        short = num_pages - len(self.allocator.free_pages)
        if short > 0:
            self.allocator.free(self.cache.evict(short))

    def close(self, lease: Lease) -> None:
        """Close a lease after its request finished or was retracted."""
        self.returning[lease] = None
        self.release(lease)

    def release(self, lease: Lease) -> None:
        """Free a closed lease's pages and row and unlock its prefix, if the free rule allows it."""
        if self.is_held(lease) or not self.may_free(lease, self):
            return
        del self.returning[lease]
        lease.is_released = True
        self.num_released += 1
        own: Sequence[int] = lease.pages[lease.shared_pages :]
        free = self.cache.retain(own) if isinstance(self.cache, BlockPool) else own
        if len(free) < len(own):
            self.allocator.disown(own)
        self.allocator.free(free, lease)
        self.table.free(lease)
        if lease.node is not None:
            self.cache.dec_lock_ref(lease.node)
        lease.pages, lease.shared_pages, lease.node = [], 0, None

    def retire(self, lease: Lease, pages: list[int]) -> None:
        """Free an open lease's pages once no step reads them; its row lists cached ones instead."""
        self.retired.add(lease, pages)
        self.free_retired()

    def free_retired(self) -> None:
        """Free the retired pages that no launched step can read."""
        returned = self.launched_step if self.may_free is at_once else self.returned_step
        for pages in self.retired.take(returned, self.is_held):
            self.allocator.disown(pages)
            self.allocator.free(pages)

    def came_back(self, step: int) -> None:
        """Free the leases and pages that waited for ``step``, which is processed now.

        Raises:
            RuntimeError: it is not the next step.
        """
        if step != self.returned_step + 1:
            raise RuntimeError(f"step {step} came back, but {self.returned_step + 1} is next")
        self.returned_step = step
        if self.retired.entries:
            self.free_retired()
        for lease in list(self.returning):
            self.release(lease)
