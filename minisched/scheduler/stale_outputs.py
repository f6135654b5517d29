"""Output that is still on its way when its request loses its memory: vLLM's books on it.

Without these books (``keep_stale_outputs`` off) such a row is dropped, and its token is computed
again under the request's next lease. That is always right, and costs the row. vLLM delivers the
token instead (``v1/core/sched/scheduler.py``, #48245): it was computed before anything was taken
away, so it is the right one. Two ways of counting failed before: a flag dropped one output where
two were in flight, and a flag set with nothing in flight ate the first output of the next life
(#42043, #42117, #47900).

Preempting sets ``computed_len`` and the placeholders to 0 and marks everything in flight as stale
(``Request.restart``). Each step that comes back drains its share. A stale token is delivered, but
no counter moves: they are the next life's. While anything stale is undrained the request is not
resumed (``WaitingQueue`` holds it): it would compute positions whose tokens are about to come.
"""

from __future__ import annotations

from ..core import Request, ScheduleBatch


def launched(batch: ScheduleBatch) -> None:
    """A step was committed: count what it computes for each request as in flight."""
    for req, ids in zip(batch.reqs, batch.ids, strict=True):
        req.num_in_flight_tokens += len(ids)


def drain(batch: ScheduleBatch) -> list[Request]:
    """A step came back: take off its share; gives those of whom nothing stale is left now."""
    drained = []
    for req, ids in zip(batch.reqs, batch.ids, strict=True):
        req.num_in_flight_tokens -= len(ids)
        if req.num_stale_output_tokens:
            req.num_stale_output_tokens -= len(ids)
            if not req.num_stale_output_tokens:
                drained.append(req)
    return drained
