"""MLX's loop as an excerpt of #22416 prints it, beside the loop: what is wrong with it.

The excerpt stands in a report on SGLang #22416 (prhub.com.cn/sgl-project/sglang/pull/22416), with
``scheduler_mixin.py``, ``model_runner.py`` and ``tp_worker.py`` in short. Its order is that of the
original, which only begins a turn elsewhere: it chains, blocks and processes; the excerpt
processes, chains and blocks. Both take equally long (``tests/loops/test_sglang.py``). It stands in
no registry, because it says the wrong words. ``export/mlx_runs.py`` runs it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, Result, ScheduleBatch
from ..engine.engine import Engine
from ..loops.design import Design
from ..relay import HostTrip
from ..worker import Step


def mlx_sketch(engine: Engine, hands_over: bool = False) -> Iterator[ScheduleBatch | NoBatch]:
    """The excerpt, statement for statement; compare ``mlx_async.py``. Each ``yield`` ends one turn.

    Added is what it leaves out: ``recv_requests``, and what to do when there is nothing.

    It finalizes the older graph, chains on the lazy one, and blocks on that, while the device runs
    the chained one. So it overlaps, as ``mlx_async`` does. Its mistake is elsewhere: in
    ``model_runner.py:decode_batch_start_chained(prev)``, which is there
    ``decode_batch_start(prev.req_ids)``. The lazy tokens are not handed over, and the step runs on
    the newest token that the host has, one too old. ``hands_over`` puts that right, as the original
    does.
    """
    if not hands_over:
        engine.worker.relay = NewestKnown()
    pending_curr: Step | None = None
    pending_next: Step | None = None
    tokens = Result(())
    while True:
        engine.recv_requests()
        if pending_curr is not None:
            engine.process_result(pending_curr, tokens)  # _finalize
        if pending_next is not None:
            pending_curr, pending_next = pending_next, None
        else:
            batch = engine.get_next_batch_to_run()
            if not batch:
                pending_curr = None
                engine.on_idle()
                yield batch
                continue
            pending_curr = engine.run_batch(batch)  # _launch_fresh
        chained = engine.chain(pending_curr.batch)  # _can_chain
        if chained is not None:
            pending_next = engine.run_batch(chained, pending_curr if hands_over else None)
        tokens = engine.wait_for(pending_curr)  # pending_curr.lazy_tokens.tolist()
        yield pending_curr.batch


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


SKETCH = Design(
    mlx_sketch, relays=("chain",), depth=2, overrun=1,
    follows="an excerpt of SGLang #22416: scheduler_mixin.py:event_loop_overlap_mlx",
)  # fmt: skip
