"""Overlap scheduling: while the device runs step N, the host processes N-1 and schedules N+1."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..core import ForwardMode, NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import Pending


def overlap(
    engine: Engine, disable_consecutive_prefill_overlap: bool = False
) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``managers/scheduler.py:event_loop_overlap``. Each ``yield`` ends one turn.

    A batch is scheduled knowing results only up to the one before the last, so a request that has
    just ended is in it once more; that row is wasted. With
    ``disable_consecutive_prefill_overlap`` (``SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP``) a
    prefill that follows a prefill is launched only after the first one's result was processed:
    the first tokens get out sooner.
    """
    result_queue: deque[Pending] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        disable_overlap = (
            disable_consecutive_prefill_overlap and is_extend(batch) and is_extend(last_batch)
        )
        if disable_overlap:
            engine.process_batch_result(result_queue.popleft())
        if batch:
            result_queue.append(engine.run_batch(batch))
        if last_batch and not disable_overlap:
            engine.process_batch_result(result_queue.popleft())  # the device runs ``batch``
        elif not batch:
            engine.on_idle()
        last_batch = batch
        yield batch


def is_extend(batch: ScheduleBatch | NoBatch) -> bool:
    """Whether this is a batch of prompts."""
    return isinstance(batch, ScheduleBatch) and batch.mode is ForwardMode.EXTEND
