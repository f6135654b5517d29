"""KV memory as the host sees it: rows and pages, whose they are, and when they go back.

A request that is admitted gets a *lease*: a row of the request table, which begins with the pages
of a cached prefix, if there is one. It grows by a page whenever the request's tokens have filled
the last (``LeasePool.extend``), and it is closed when the request ends or is retracted. But not all
that is closed is free. The host reads a stop token when the next step is launched already, and that
step may name the request once more: a row that is wasted, and that still writes to its pages. So a
closed lease waits for what is in flight, and a *free rule* says how long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core import Lease, Request
from ..trace import NullRecorder, Recorder
from ..trace.events import Value
from .block_pool import BlockPool
from .radix_cache import Match, RadixCache

PageCache = RadixCache | BlockPool
"""What finds the pages of a prefix: a tree (SGLang) or a map from hashes to blocks (vLLM)."""


class MemoryLeak(RuntimeError):
    """Nothing runs, yet memory is missing or still held."""


class OwnershipError(RuntimeError):
    """A row or page was handed out while an open lease or a launched batch still names it."""


# -- The request table: a row for each request that holds memory -----------------------------------


class ReqToTokenPool:
    """Which pages hold the tokens of whom (SGLang ``mem_cache/memory_pool.py:ReqToTokenPool``).

    ``req_to_token[row].pages`` are those of a row, by position; of a free row it is whose it was
    last. The KV slots that SGLang's tensor of this name lists are the device's affair (the worker's
    ``page_table``): each step brings it the pages that are new. ``size`` rows can be held at once;
    row 0 is padding and never handed out. ``on_free`` hears of every row that is taken back.
    """

    def __init__(self, size: int, recorder: Recorder | None = None) -> None:
        self.size, self.recorder = size, recorder or NullRecorder()
        self.req_to_token: dict[int, Lease] = {}
        self.free_rows = list(range(size, 0, -1))
        self.on_free: Callable[[Lease], None] = lambda lease: None

    @property
    def available_size(self) -> int:
        """Rows that are free."""
        return len(self.free_rows)

    def alloc(self, rid: str = "") -> Lease:
        """Open a lease on a free row, for the request ``rid``.

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
        """Take a row back."""
        self.free_rows.append(lease.row)
        self.recorder.mark("row free", row=lease.row, rid=lease.rid)
        self.on_free(lease)


# -- Pages: free, or a lease's, or the prefix cache's ----------------------------------------------


class PageAllocator:
    """A free list of pages (SGLang ``mem_cache/allocator.py``, mini-sglang ``scheduler/cache.py``).

    A page is ``page_size`` KV slots in a row. Page 0 is never handed out: KV slot 0 is padding.
    ``owner`` is whose a page is, or was last; the prefix cache's have none. ``on_free`` hears of
    every page that is taken back.
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
        """Pages that hold ``num_tokens`` positions."""
        return -(-num_tokens // self.page_size)

    def alloc(self, lease: Lease, num_pages: int) -> None:
        """Give ``lease`` that many more pages.

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
        """These pages stop being a lease's: the prefix cache takes them, or nobody names them."""
        for page in pages:
            self.owner.pop(page, None)
        self._mark("page disown", pages)

    def free(self, pages: Sequence[int], lease: Lease | None = None) -> None:
        """Take pages back, of ``lease`` or of the prefix cache."""
        self.free_pages += pages
        self._mark("page free", pages)
        self.on_free(pages, lease)

    def _mark(self, name: str, pages: Sequence[int], lease: Lease | None = None) -> None:
        if self.recorder.is_on and pages:
            owner: dict[str, Value] = {"rid": lease.rid, "row": lease.row} if lease else {}
            self.recorder.mark(name, **owner, pages=" ".join(map(str, pages)))


# -- Leases on both --------------------------------------------------------------------------------

FreeRule = Callable[[Lease, "LeasePool"], bool]
"""Returns whether a closed lease can be released now."""


class LeasePool:
    """Opens leases on cached prefixes, lets them grow, and takes them back in the end."""

    def __init__(
        self,
        allocator: PageAllocator,
        table: ReqToTokenPool,
        cache: PageCache,
        may_free: FreeRule | None = None,  # None: ``steps_returned``
    ) -> None:
        self.allocator, self.table, self.cache = allocator, table, cache
        self.may_free = may_free or steps_returned
        self.launched_step = 0  # the last one committed
        self.returned_step = 0  # the last one that has come back; they come back in order
        self.returning: dict[Lease, None] = {}  # closed, but a launched step still names them
        self.retired: list[tuple[Lease, int, list[int]]] = []  # pages that it may still read
        self.num_released = 0  # leases so far

    @property
    def available_pages(self) -> int:
        """Pages that can be had now: free ones, and those that the cache would give up."""
        return len(self.allocator.free_pages) + self.cache.evictable_size

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
        if lease.node is not None:
            pages += self.cache.num_pages_locked(lease.node, 1)
        return pages

    def pages_to_lock(self, match: Match | None) -> int:
        """Pages of the match that nobody uses yet: locking takes them out of what can be had."""
        return self.cache.num_pages_locked(match.node, 0) if match else 0

    def pages_lacking(self, lease: Lease, length: int) -> int:
        """Pages that a lease would need on top of its own to hold ``length`` positions."""
        return max(0, self.allocator.pages_for(length) - len(lease.pages))

    def pages_short(self, reqs: Sequence[Request]) -> int:
        """Pages that one more step for each of ``reqs`` needs beyond those to be had."""
        if len(reqs) <= len(self.allocator.free_pages) and not (reqs and reqs[0].num_draft_tokens):
            return 0  # nobody takes two for one position
        need = sum(self.pages_lacking(req.lease, req.reach()) for req in reqs if req.lease)
        return need - self.available_pages

    def open(self, match: Match | None = None, rid: str = "") -> Lease:
        """A lease on a free row, which begins with a cached prefix; that is locked from now on."""
        lease = self.table.alloc(rid)
        if match is not None:
            self.cache.inc_lock_ref(match.node)
            lease.node = match.node
            lease.pages = list(match.pages)
            lease.shared_pages = len(match.pages)
            lease.settled_len = len(match.pages) * self.allocator.page_size
        return lease

    def extend(self, lease: Lease, length: int) -> tuple[int, Sequence[int]]:
        """Let a lease hold ``length`` positions; its pages that the device lacks, from where."""
        self.reserve(lease, length)
        at, lease.sent_pages = lease.sent_pages, len(lease.pages)
        return at, lease.pages[at:]

    def reserve(self, lease: Lease, length: int) -> None:
        """The same while a step is only planned: the device hears of it with the step."""
        if lacking := self.pages_lacking(lease, length):
            self.make_free(lacking)
            self.allocator.alloc(lease, lacking)

    def make_free(self, num_pages: int) -> None:
        """Let the cache give up pages until so many are free, or nothing can be given up."""
        short = num_pages - len(self.allocator.free_pages)
        if short > 0:
            self.allocator.free(self.cache.evict(short))

    def close(self, lease: Lease) -> None:
        """Its request lets go of it."""
        self.returning[lease] = None
        self.release(lease)

    def release(self, lease: Lease) -> None:
        """Free its pages and its row and unlock its prefix, if the rule says that it is time."""
        if lease.num_transfers or not self.may_free(lease, self):
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
        """An open lease no longer needs these pages: its row lists the cache's in their place.

        They are free once what is launched has come back, or at once, where the rule says so.
        """
        self.retired.append((lease, lease.last_step, pages))
        self.free_retired()

    def free_retired(self) -> None:
        """Free the retired pages that nobody can be reading any more."""
        returned = self.launched_step if self.may_free is at_once else self.returned_step
        retired, self.retired = self.retired, []
        for lease, last_step, pages in retired:
            if lease.num_transfers or last_step > returned:
                self.retired.append((lease, last_step, pages))
            else:
                self.allocator.disown(pages)
                self.allocator.free(pages)

    def came_back(self, step: int) -> None:
        """A step has been processed: free what waited for it, and look at nothing else.

        Raises:
            RuntimeError: it is not the next one.
        """
        if step != self.returned_step + 1:
            raise RuntimeError(f"step {step} came back, but {self.returned_step + 1} is next")
        self.returned_step = step
        if self.retired:
            self.free_retired()
        for lease in list(self.returning):
            self.release(lease)

    def flush_cache(self) -> bool:
        """Forget every cached prefix; refused (False) while anything holds memory."""
        if self.is_idle:
            self.make_free(self.allocator.num_pages)
        return self.is_idle

    def self_check(self) -> None:
        """At idle: every page is free or cached, every row free (``self_check_during_idle``).

        Raises:
            MemoryLeak: they are not.
        """
        available, total = self.available_pages, self.allocator.num_pages
        protected = self.cache.protected_size
        free, size = self.table.available_size, self.table.size
        if available != total or free != size:
            twice = " (some of them twice)" if available > total else ""
            pages = f"{available} are free or evictable{twice} and {protected} still locked"
            rows = f"{free} of {size} rows are free"
            raise MemoryLeak(f"nothing runs, but of {total} pages {pages}, and {rows}.")


# -- When a closed lease goes back: three rules, and what each relies on ---------------------------


def steps_returned(lease: Lease, pool: LeasePool) -> bool:
    """Every step that names it has come back: right for any depth and any number of streams."""
    return lease.last_step <= pool.returned_step


def deferred(lease: Lease, pool: LeasePool) -> bool:
    """The ongoing batch does not name it.

    mini-sglang before e7d4f65: ``finished_reqs.difference(ongoing_reqs)``. With two steps in
    flight it frees exactly when ``steps_returned`` does; of more it overlooks all but the newest.
    """
    is_ongoing = pool.launched_step > pool.returned_step
    return not (is_ongoing and lease.last_step == pool.launched_step)


def at_once(lease: Lease, pool: LeasePool) -> bool:
    """Always: the next owner's writes come after the wasted row's, on the same stream.

    mini-sglang since e7d4f65, SGLang of the KV, and vLLM where no KV connector reads it. A second
    stream breaks it. On one, mini-sglang copies prompts to its token pool: a new owner's can come
    before the wasted row's late token, which then overwrites it (mini-sglang #89). On one, SGLang
    writes its request table, so ``_apply_war_barrier`` waits until it has been read (museum:
    ``request_table_rewritten``).
    """
    return True
