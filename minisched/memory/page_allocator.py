"""Pages of KV memory: who owns which, and which are free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core import Lease
from ..trace import NullRecorder, Recorder
from ..trace.events import Value
from .req_to_token import OwnershipError


def unheard(pages: Sequence[int], lease: Lease | None) -> None:
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
        self.on_free: Callable[[Sequence[int], Lease | None], None] = unheard

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
