"""AsyncScheduler's arithmetic: which tokens of a request are settled, and which ends it foresees.

vLLM ``v1/core/sched/async_scheduler.py``. Scheduling adds the tokens of a step to
``num_computed_tokens`` at once, and one output placeholder to every request that is not a prompt
in chunks. A result takes its placeholder off again. So what is computed, less the placeholders, is
what was computed from tokens that the host knows: only that may be hashed for the prefix cache.
Here both numbers follow from the lengths of ``core/request.py``; the law is the same.
"""

from __future__ import annotations

from ..core import Request


def settled_tokens(req: Request) -> int:
    """Positions computed from tokens that the host knows: computed less placeholders.

    For whoever decodes that is every known token but the newest, however many steps are in flight.
    """
    return req.computed_len - req.num_output_placeholders


def is_length_foreseen(req: Request) -> bool:
    """vLLM's rule for leaving a running request out: what is in flight will reach its length.

    ``computed + 2 - placeholders >= prompt + max_tokens``, if there are placeholders. It counts on
    one new token of what is in flight, because drafts may be rejected. With at most one step in
    flight beside the one being scheduled (depth 2) that is exact, and equal to
    ``DecodeManager.may_run`` with overrun 0; deeper, it would let ``depth - 2`` rows run too far.
    """
    placeholders = req.num_output_placeholders
    return placeholders > 0 and req.computed_len + 2 - placeholders >= req.max_device_len
