"""Leases on memory: opened, grown, closed, and released when the rule for it says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..core import Lease
from ..trace import NullRecorder, Recorder
from ..trace.events import Value

# -- What leases ask of a prefix cache, be it a radix tree or a map from hashes to blocks ----------

Node = Any  # where a cached prefix ends, as the cache knows it: a tree's node, or a chain of blocks


class Found(Protocol):
    """The longest cached prefix."""

    @property
    def node(self) -> Node:
        """Where it ends: lock it before anything can be evicted."""

    @property
    def pages(self) -> list[int]:
        """[num_pages] page ids, in order."""


class Inserted(Protocol):
    """What became of pages that were offered."""

    @property
    def node(self) -> Node:
        """Where the inserted prefix ends."""

    @property
    def num_cached_pages(self) -> int:
        """Leading pages that are others' by now: their duplicates stay the caller's."""


class PageCache(Protocol):
    """``RadixCache`` (SGLang) or ``BlockPool`` (vLLM); all sizes are in pages.

    A page in it is *protected* while a lock is held on a prefix that it belongs to, else
    *evictable*.
    """

    page_size: int

    @property
    def evictable_size(self) -> int:
        """Pages that could be given up now."""

    @property
    def protected_size(self) -> int:
        """Pages that could not."""

    @property
    def total_size(self) -> int:
        """Both together."""

    def match_prefix(self, tokens: Sequence[int]) -> Found:
        """The longest cached prefix of ``tokens``, in whole pages."""

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> Inserted:
        """Give it the pages of ``tokens`` that it lacks."""

    def inc_lock_ref(self, node: Node) -> None:
        """Keep the prefix that ends at ``node`` from being evicted."""

    def dec_lock_ref(self, node: Node) -> None:
        """Take one ``inc_lock_ref`` back."""

    def move_lock(self, node: Node, to: Node) -> None:
        """Take one ``inc_lock_ref`` on, to where the same prefix has grown to."""

    def num_pages_locked(self, node: Node, times: int) -> int:
        """Pages of the prefix that ends at ``node`` on which so many locks are held."""

    def retain(self, pages: Sequence[int]) -> Sequence[int]:
        """A lease lets go of pages that are not in it: those that it does not keep in its line."""

    def evict(self, num_pages: int) -> list[int]:
        """Give back at least ``num_pages`` page ids, or all that are evictable if fewer."""


# -- When a request's row and pages go back after its end: three rules, and what each relies on ----
#
# A request ends when the host has read its stop token. By then the next step is launched and may
# name it once more: a row that is wasted, and that still writes to its memory.


class Steps(NamedTuple):
    """How far the engine is."""

    launched: int  # the last step committed
    returned: int  # the last one that has come back; they come back in order


def lease(lease: Lease, steps: Steps) -> bool:
    """Every step that names it has come back: right for any depth and any number of streams."""
    return lease.last_step <= steps.returned


def deferred(lease: Lease, steps: Steps) -> bool:
    """The ongoing batch does not name it.

    mini-sglang before e7d4f65: ``finished_reqs.difference(ongoing_reqs)``. With two steps in
    flight there is only one that is ongoing when a result is processed, so it frees exactly when
    ``lease`` does. With more it looks at the newest and overlooks those before it.
    """
    is_ongoing = steps.launched > steps.returned
    return not (is_ongoing and lease.last_step == steps.launched)


def at_once(lease: Lease, steps: Steps) -> bool:
    """Always: the next owner's writes come after the wasted row's, on the same stream.

    mini-sglang since e7d4f65, SGLang of the KV, and vLLM where no KV connector reads it. A second
    stream breaks it: mini-sglang copies prompts to the token pool on the scheduler's stream, where
    a new owner's prompt can come before the wasted row's late token, and is then overwritten by it
    (mini-sglang #89). SGLang writes its
    request table (``req_to_token``) on the schedule stream as well, and there the stream's order
    orders nothing either: ``_apply_war_barrier`` lets those writes wait until the forward pass has
    read the table (``museum/bugs/request_table_rewritten.py``).
    """
    return True


FreeRule = Callable[[Lease, Steps], bool]
RULES: dict[str, FreeRule] = {"lease": lease, "deferred": deferred, "at_once": at_once}


# -- The rows of the request table: one for each request that holds memory -------------------------


class OwnershipError(RuntimeError):
    """A row or page was handed out while an open lease or a launched batch still names it."""


def no_row_heard(lease: Lease) -> None:
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
        self.on_free: Callable[[Lease], None] = no_row_heard

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


# -- Pages of KV memory: who owns which, and which are free ----------------------------------------


def no_page_heard(pages: Sequence[int], lease: Lease | None) -> None:
    """Nobody wants to know which pages come back, and whose they were."""


class PageAllocator:
    """A free list of pages (SGLang ``mem_cache/allocator.py``, mini-sglang ``scheduler/cache.py``).

    A page is ``page_size`` KV slots in a row. Page 0 is never handed out, so that KV slot 0 can
    stand for nobody's (SGLang keeps it for padding). A page is free, or a lease's, or the prefix
    cache's. ``on_free`` hears of every page that is taken back, whoever gives it.
    """

    def __init__(
        self, num_pages: int, page_size: int = 1, recorder: Recorder | None = None
    ) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.recorder = recorder or NullRecorder()
        self.free_pages = list(range(num_pages, 0, -1))
        self._owner: dict[int, Lease] = {}
        self.on_free: Callable[[Sequence[int], Lease | None], None] = no_page_heard

    @property
    def available_pages(self) -> int:
        """Pages that are free."""
        return len(self.free_pages)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold ``num_tokens`` positions."""
        return -(-num_tokens // self.page_size)

    def last_owner(self, page: int) -> Lease | None:
        """Whose a page was last; None once it has gone into the prefix cache."""
        return self._owner.get(page)

    def alloc(self, lease: Lease, num_pages: int) -> None:
        """Give ``lease`` that many more pages.

        Raises:
            OwnershipError: a page's last lease is not released.
        """
        for _ in range(num_pages):
            page = self.free_pages.pop()
            last = self._owner.get(page)
            if last is not None and not last.is_released:
                raise OwnershipError(f"page {page} was handed out while its last lease is in use")
            self._owner[page] = lease
            lease.pages.append(page)
        self._mark("page alloc", lease.pages[len(lease.pages) - num_pages :], lease)

    def disown(self, pages: Sequence[int]) -> None:
        """These pages stop being a lease's: the prefix cache takes them, or nobody names them."""
        for page in pages:
            self._owner.pop(page, None)
        self._mark("page disown", pages)

    def free(self, pages: Sequence[int], lease: Lease | None = None) -> None:
        """Take pages back, of ``lease`` or of the prefix cache."""
        self.free_pages += pages
        self._mark("page free", pages)
        self.on_free(pages, lease)

    def _mark(self, name: str, pages: Sequence[int], lease: Lease | None = None) -> None:
        """Say which pages, and whose they are from now on."""
        if self.recorder.is_on and pages:
            owner: dict[str, Value] = {"rid": lease.rid, "row": lease.row} if lease else {}
            self.recorder.mark(name, **owner, pages=" ".join(map(str, pages)))


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
