"""When a request's row and pages go back after its end: three rules, and what each relies on.

A request ends when the host has read its stop token. By then the next step is launched and may
name it once more: a row that is wasted, and that still writes to its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..core import Lease


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
    (mini-sglang #89). SGLang writes its request table (``req_to_token``) on the schedule stream as
    well, and there the stream's order orders nothing either: ``_apply_war_barrier`` lets those
    writes wait until the forward pass has read the table
    (``museum/bugs/request_table_rewritten.py``).
    """
    return True


FreeRule = Callable[[Lease, Steps], bool]
RULES: dict[str, FreeRule] = {"lease": lease, "deferred": deferred, "at_once": at_once}
