"""At idle every page is free or cached and every row is free: check it, and empty the cache."""

from __future__ import annotations

from .pool import LeasePool


class MemoryLeak(RuntimeError):
    """Nothing runs, but memory is missing or still held."""


def self_check(leases: LeasePool) -> None:
    """Check at idle that no page and no row is missing (SGLang ``self_check_during_idle``).

    Raises:
        MemoryLeak: one is.
    """
    available, total = leases.available_pages, leases.allocator.num_pages
    protected = leases.cache.protected_size
    free, size = leases.table.available_size, leases.table.size
    if available != total or free != size:
        twice = " (some of them twice)" if available > total else ""
        pages = f"{available} are free or evictable{twice} and {protected} still locked"
        rows = f"{free} of {size} rows are free"
        raise MemoryLeak(f"nothing runs, but of {total} pages {pages}, and {rows}.")


def flush_cache(leases: LeasePool) -> bool:
    """Evict every cached prefix; return False, and do nothing, while a lease holds memory."""
    if leases.is_idle:
        leases.make_free(leases.allocator.num_pages)
    return leases.is_idle
