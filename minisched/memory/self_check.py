"""At idle nothing holds memory: every page is free or cached, and every row is free."""

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
