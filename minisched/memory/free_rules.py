"""Free rules: when the memory of a closed lease is released.

The next owner may write to a page or row as soon as it is released. A step in flight may still have
a row of the old owner. On one stream the next owner's writes come later. Otherwise a rule compares
the last step that refers to the lease with the steps that have returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..core import Lease


class StepCounts(Protocol):
    """The steps in flight, as a free rule sees them (``pool.py:LeasePool``)."""

    launched_step: int  # the last one committed
    returned_step: int  # the last one processed


FreeRule = Callable[[Lease, StepCounts], bool]
"""Returns whether a closed lease can be released now."""


def steps_returned(lease: Lease, pool: StepCounts) -> bool:
    """Wait for every step that refers to it: safe for any depth and any number of streams."""
    return lease.last_step <= pool.returned_step


def deferred(lease: Lease, pool: StepCounts) -> bool:
    """Wait until the ongoing batch does not refer to it.

    mini-sglang before e7d4f65: ``finished_reqs.difference(ongoing_reqs)``. With two steps in
    flight it frees exactly when ``steps_returned`` does; of more it sees only the newest.
    """
    is_ongoing = pool.launched_step > pool.returned_step
    return not (is_ongoing and lease.last_step == pool.launched_step)


def at_once(lease: Lease, pool: StepCounts) -> bool:
    """Wait for nothing: the next owner's writes follow the wasted row's on the same stream.

    SGLang, mini-sglang since e7d4f65, and vLLM where no KV connector reads it. A second stream that
    writes the memory breaks it. mini-sglang copies prompts to its token pool on one. So a new
    owner's can come before the wasted row's late token, which then overwrites it (mini-sglang #89).
    SGLang writes its request table on one, so ``_apply_war_barrier`` waits until it has been read
    (museum: ``request_table_rewritten``). The race law checks the order (``checks/races.py``).
    """
    return True


@dataclass
class RetiredPages:
    """Pages that an open lease gave up, each with the lease and the last step that may read it.

    Another request had cached the same prefix, so the row of the lease lists the cache's pages
    instead (``prefix_cache.py``). The old pages are free only when those steps have returned.
    """

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
