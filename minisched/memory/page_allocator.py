"""Hands out pages of KV slots and takes them back."""

from __future__ import annotations

from ..core import Lease
from .req_to_token import OwnershipError


class PageAllocator:
    """A free list of pages (SGLang ``mem_cache/allocator.py``, mini-sglang ``scheduler/cache.py``).

    A page is ``page_size`` KV slots in a row. Page 0 is never handed out, so that KV slot 0 can
    stand for nobody's (SGLang keeps it for padding).
    """

    def __init__(self, num_pages: int, page_size: int = 1) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.free_pages = list(range(num_pages, 0, -1))
        self._owner: dict[int, Lease] = {}

    @property
    def available_pages(self) -> int:
        """Pages that are free."""
        return len(self.free_pages)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold ``num_tokens`` positions."""
        return -(-num_tokens // self.page_size)

    def extend(self, lease: Lease, length: int) -> list[int]:
        """Give ``lease`` pages until it holds ``length`` positions; return the new KV slots.

        Raises:
            OwnershipError: a page's last lease is not released.
        """
        slots: list[int] = []
        for _ in range(self.pages_for(length) - len(lease.pages)):
            page = self.free_pages.pop()
            last = self._owner.get(page)
            if last is not None and not last.is_released:
                raise OwnershipError(f"page {page} was handed out while its last lease is in use")
            self._owner[page] = lease
            lease.pages.append(page)
            slots += range(page * self.page_size, (page + 1) * self.page_size)
        return slots

    def free(self, lease: Lease) -> None:
        """Take all pages of a lease back."""
        self.free_pages += lease.pages
        lease.pages = []
