"""Pages that an open lease gave up, because its row lists the prefix cache's pages instead.

Another request had cached the same prefix (``prefix_cache.py``). Launched steps may still read the
old pages, so they are free only when those steps have returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core import Lease


@dataclass
class RetiredPages:
    """The pages, each with its lease and the last step that may read it."""

    entries: list[tuple[Lease, int, list[int]]] = field(default_factory=list)

    def add(self, lease: Lease, pages: list[int]) -> None:
        """Keep pages until the launched steps of their lease have returned."""
        self.entries.append((lease, lease.last_step, pages))

    def take(self, returned_step: int, is_held: Callable[[Lease], bool]) -> list[list[int]]:
        """Remove and return the pages that no launched step and no transfer can read."""
        entries, self.entries, free = self.entries, [], []
        for lease, last_step, pages in entries:
            if is_held(lease) or last_step > returned_step:
                self.entries.append((lease, last_step, pages))
            else:
                free.append(pages)
        return free
