"""Free rules: when the memory of a closed lease is released.

The next owner may write to a page or row as soon as it is released. A step in flight may still have
a row of the old owner. On one stream the next owner's writes come later. Otherwise a rule compares
the last step that refers to the lease with the steps that have returned.
"""

from __future__ import annotations

from collections.abc import Callable
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
