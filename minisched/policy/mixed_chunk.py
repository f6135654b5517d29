"""Mixed chunks: running requests decode in the same step as a chunk of somebody's prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Request
from ..memory import LeasePool


def can_mix(reqs: Sequence[Request]) -> bool:
    """Whether a batch of ``reqs`` may be mixed: none wants log-probabilities (as in SGLang)."""
    return not any(req.params.return_logprob for req in reqs)


def mix_with_running(
    prefill: list[tuple[Request, int]], running: Sequence[Request], leases: LeasePool
) -> list[Request]:
    """The running requests to add to a prefill batch, with an extend length of 1 each.

    SGLang ``schedule_batch.py:ScheduleBatch.mix_with_running``. Nobody, if one of the prompts wants
    log-probabilities, or if memory does not reach for all: then the prompts run alone, and the
    next decode step sees to it.
    """
    work = [*prefill, *((req, 1) for req in running)]
    need = sum(
        leases.pages_lacking(req.lease, req.computed_len + length)
        for req, length in work
        if req.lease is not None
    )
    if need > leases.available_pages or not can_mix([req for req, _ in work]):
        return []
    return list(running)


def prefix_len(req: Request, enable_overlap: bool) -> int:
    """Where a running request's one token goes: what the host knows, less 1 without overlap.

    The published delta, kept to be read: nothing in the package calls it, and a test holds it
    against every row that decodes in a mixed batch. With overlap the host knows one token less
    than the device has, so the position after the last known one is the one to compute; without,
    the last known token is. It equals ``computed_len`` whenever a batch of that kind is built.
    """
    return req.known_len + (0 if enable_overlap else -1)
