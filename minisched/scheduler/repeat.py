"""When a decode step may be repeated: the same requests, one position on, without scheduling."""

from __future__ import annotations

from ..core import ScheduleBatch
from .scheduler import Scheduler


def can_chain(scheduler: Scheduler, batch: ScheduleBatch) -> bool:
    """Return whether a new schedule would repeat a decode batch: no other request can join it.

    SGLang ``hardware_backend/mlx/scheduler_mixin.py``.
    """
    if scheduler.waiting_queue or scheduler.prefill.chunked_req:
        return False
    return batch.reqs == scheduler.running_batch and can_repeat(scheduler, batch)


def can_repeat(scheduler: Scheduler, batch: ScheduleBatch) -> bool:
    """Return whether every request of a decode batch can run once more, and has memory for it."""
    reqs = batch.reqs
    if batch.num_extend_reqs or batch.has_departed_reqs:
        return False
    has_room = all(req.device_len <= scheduler.config.row_len for req in reqs)
    may_run = all(map(scheduler.decode.may_run, reqs))
    return has_room and may_run and scheduler.leases.pages_short(reqs) <= 0
