"""Two lazy graphs in flight: build the next step on tokens nobody has computed yet."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from .mlx_jobs import MlxPendingJob
from .mlx_worker import MlxTpModelWorker


def mlx_async(
    engine: Engine, clear_cache_every: int = 256, chain_extend: bool = False
) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx``.

    While the chain holds, a turn builds step N+1 on step N's lazy tokens, then blocks on N. It
    breaks when a prompt waits or a request ended: the step in flight is finalized too, and the
    next one is scheduled afresh. Nothing is chained on a step whose tokens a grammar or penalties
    have to see first. A settled step takes max(d, h, c, (d + h + c) / 2). No batch is ever
    committed for nobody, so the worker's idle mode does not occur here. Each ``yield`` ends one
    turn.

    ``chain_extend`` is what a report on #22416 suggests next, and SGLang 0.5.23 has not: where the
    chain would break, the next step is scheduled and built behind the one in flight, whatever it is
    (``_launch_behind``). lessons/site/docs/mlx_caches.md has what it brings.
    """
    tp_worker = MlxTpModelWorker(engine, clear_cache_every)
    pending_curr: MlxPendingJob | None = None
    while True:
        engine.recv_requests()
        pending_next: MlxPendingJob | None = None
        unsafe = ""  # why nothing may be chained, where it could be otherwise
        if pending_curr is not None:
            unsafe = _chain_unsafe(engine, pending_curr, chain_extend)
            if not unsafe:
                pending_next = _launch_chained(engine, tp_worker, pending_curr)
            if chain_extend and not (unsafe or pending_next):
                pending_next = _launch_behind(engine, tp_worker, pending_curr)
            _finalize_mlx_pending_job(engine, tp_worker, pending_curr)  # the device runs the next
            pending_curr = None
        if pending_next is not None and (chain_extend or _may_be_promoted(engine, pending_next)):
            pending_curr = pending_next
            yield pending_curr.batch_copy
            continue
        if pending_next is not None:  # the chain is broken; what it made is good for who lives on
            _finalize_mlx_pending_job(engine, tp_worker, pending_next)
        next_batch = engine.get_next_batch_to_run()
        if next_batch:
            pending_curr = _launch_fresh(engine, tp_worker, next_batch, unsafe)
        else:
            engine.on_idle()
        yield next_batch


def _launch_fresh(
    engine: Engine, tp_worker: MlxTpModelWorker, batch: ScheduleBatch, waited_for: str
) -> MlxPendingJob:
    if waited_for:
        engine.recording.must_wait(batch, waited_for, "forward")
    launch = tp_worker.async_forward_batch_generation_mlx(batch)
    return MlxPendingJob(*launch, batch_copy=batch, schedule_batch=batch, reqs=batch.reqs)


def _chain_unsafe(engine: Engine, prev: MlxPendingJob, chain_extend: bool) -> str:
    """Why the step that could be chained on ``prev`` must not be: its mask needs ``prev``'s tokens.

    The original's ``MlxPendingJob.chain_safe``, for grammars; it has no penalties yet (#39559).
    """
    chains = prev.mode == "decode" and engine.scheduler.can_chain(prev.batch_copy)
    chains = chains or chain_extend
    return engine.missing_history(prev.batch_copy, steps_ahead=1) if chains else ""


def _launch_chained(
    engine: Engine, tp_worker: MlxTpModelWorker, prev: MlxPendingJob
) -> MlxPendingJob | None:
    """The same requests once more on ``prev``'s lazy tokens; None where the chain must break.

    It holds for a pure decode, while nobody waits (even one that could not be admitted); and,
    unlike the original's, only while everybody lives and has room, because a step is committed.
    """
    if prev.mode != "decode" or prev.decode is None:
        return None
    batch = engine.chain(prev.batch_copy)
    if batch is None:
        return None
    launch = tp_worker.async_chained_decode_mlx(batch, prev.decode)
    return MlxPendingJob(*launch, batch, prev.schedule_batch, prev.reqs)


def _launch_behind(
    engine: Engine, tp_worker: MlxTpModelWorker, prev: MlxPendingJob
) -> MlxPendingJob | None:
    """Schedule a step while ``prev`` is in flight, and build it on that; None if there is none yet.

    An extend needs nothing that ``prev`` has still to say: it reads a prompt, and the graph itself
    orders who writes and who reads KV. It needs memory, a row of the request table and its turn in
    the queue, which the scheduler gives out before ``prev``'s end is heard; so it does for
    ``event_loop_overlap``. There a FutureMap keeps the tokens in flight. Here they are rows of one
    array, ``prev``'s, because what was launched before ``prev`` has been read: a decode behind an
    extend takes the first tokens from that array, and all others from the host. The price is
    overlap's, too. Memory comes back a step later, and who has ended is in one more step.
    """
    batch = engine.get_next_batch_to_run()
    if not batch:
        return None
    launch = tp_worker.async_forward_batch_generation_mlx(batch, prev)
    return MlxPendingJob(*launch, batch_copy=batch, schedule_batch=batch, reqs=batch.reqs)


def _finalize_mlx_pending_job(
    engine: Engine, tp_worker: MlxTpModelWorker, pending: MlxPendingJob
) -> None:
    result = tp_worker.finalize_mlx_result(pending)
    if pending.lazy_tokens is not None:
        engine.process_result(pending.lazy_tokens.step, result)


def _may_be_promoted(engine: Engine, pending_next: MlxPendingJob) -> bool:
    """Whether the step in flight may be chained upon: nobody in it ended, and nobody waits."""
    return not pending_next.batch_copy.anyone_left and not engine.scheduler.waiting_queue
