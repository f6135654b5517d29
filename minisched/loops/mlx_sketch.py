"""A sketch of MLX's loop that is widely copied, beside the loop: what is wrong with it.

It stands in no registry: with ``finalize_first`` it is a serial loop under another name, and
without, it says the wrong words. ``export/mlx_runs.py`` runs both.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..relay import HostTrip
from ..worker import GenerationBatchResult
from .spec import LoopSpec


def mlx_sketch(engine: Engine, finalize_first: bool = True) -> Iterator[ScheduleBatch | NoBatch]:
    """The sketch; compare ``mlx_async.py``. Each ``yield`` ends one turn.

    It reads a step before it launches the chained one, so two graphs are never in flight and the
    device idles while the host works. And the chained step is not handed the lazy tokens. After a
    finalize that does no harm, for by then the host has them; but with the order alone put right
    (``finalize_first=False``) the step runs on the newest token that the host has, one too old.
    """
    engine.worker.relay = NewestKnown()
    pending: GenerationBatchResult | None = None
    while True:
        engine.recv_requests()
        following: GenerationBatchResult | None = None
        if pending is not None:
            if finalize_first:
                engine.process_batch_result(pending)  # blocks: nothing else is in flight
            chained = engine.chain(pending.batch)
            if chained is not None:
                following = engine.run_batch(chained)  # and not run_batch(chained, pending)
            if not finalize_first:
                engine.process_batch_result(pending)
        pending = following
        if pending is not None:
            yield pending.batch
            continue
        next_batch = engine.get_next_batch_to_run()
        if next_batch:
            pending = engine.run_batch(next_batch)
        else:
            engine.on_idle()
        yield next_batch


class NewestKnown(HostTrip):
    """What the input is where nobody hands over the lazy token: the newest one of the host.

    SGLang's ``decode_batch_start`` reads ``_req_token_ids[rid][-1]`` in the same way, and is right
    to, because whoever calls it has finalized everything.
    """

    run_ahead = True

    def bind(
        self, batch: ScheduleBatch, previous: ScheduleBatch | None
    ) -> tuple[list[int], list[int]]:
        """The known ids; in place of one that is unknown, the newest known one."""
        ids = [
            (row.req.output_ids or row.req.prompt)[-1] if token is None else token
            for row in batch.rows
            for token in row.ids
        ]
        return ids, []


SKETCH = LoopSpec(
    mlx_sketch, depth=2, overrun=1, relays=("chain",),
    source="copies of SGLang hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx",
)  # fmt: skip
