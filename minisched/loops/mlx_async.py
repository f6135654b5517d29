"""Two lazy graphs in flight: build the next step on tokens nobody has computed yet."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import Pending
from .mlx_runner import MlxModelRunner


def mlx_async(engine: Engine, clear_cache_every: int = 256) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx``.

    While the chain holds, a turn builds step N+1 on step N's lazy tokens, then blocks on N. It
    breaks when a prompt waits or a request ended: the step in flight is finalized too, and the
    next one is scheduled afresh. Each ``yield`` ends one turn.
    """
    runner = MlxModelRunner(engine, clear_cache_every)
    current: Pending | None = None
    while True:
        engine.recv_requests()
        following: Pending | None = None
        if current is not None:
            chained = engine.chain(current.batch)
            if chained is not None:
                following = runner.decode_batch_start_chained(chained, current)
            runner.finalize(current)
        if following is not None and still_right(engine, following.batch):
            current = following
            yield following.batch
            continue
        if following is not None:
            runner.finalize(following)  # its tokens are good for every request that lives on
        batch = engine.get_next_batch_to_run()
        current = runner.start(batch) if batch else None
        if not batch:
            engine.on_idle()
        yield batch


def still_right(engine: Engine, batch: ScheduleBatch) -> bool:
    """Whether a chained step may be chained upon: nobody in it ended, and nobody waits."""
    return not batch.anyone_left and not engine.scheduler.waiting_queue
