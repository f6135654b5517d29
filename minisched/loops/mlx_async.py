"""MLX's overlap: build step N+1 on the tokens of step N before the device has computed them.

MLX arrays are lazy: an operation only records what to compute, and ``mx.async_eval`` computes it
while the host continues. So no FutureMap is needed. The host builds step N+1 directly on step N's
token array, submits it, and only then blocks on N. The device goes from one to the other without a
gap. This is the *chain*. It holds as long as the same requests decode again. If a prompt waits or a
request has ended, the loop finalizes the step in flight and schedules a new one.

Three files answer how MLX's async eval works here.

- This one: when a step is launched on another one's tokens, and when the host blocks.
- ``relay/lazy_chain.py``: how the token array of step N becomes the input of step N+1.
- ``devices/mlx.py``: how a launch builds a graph, a flush submits it, and a read waits for it.

On other devices the same loop runs with ops on a stream instead of graphs. The original has a class
for each handle and a method for each kind of row; lessons/site/docs/names.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..scheduler.config import ALGORITHMS
from ..scheduler.repeat import can_chain
from ..worker import Step
from .design import OTHERS, design


@design(
    follows="SGLang hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx",
    relays=("chain", "ring", "pool", *OTHERS),
    depth=2,
    overrun=1,
    refuses=dict.fromkeys(
        ALGORITHMS,
        "SGLang's MLX backend has no speculation in 0.5.23 (hardware_backend/mlx)",
    ),
)
def mlx_async(
    engine: Engine, clear_cache_every: int = 256, chain_extend: bool = False
) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx`` (#22416).

    A settled step takes max(d, h, c, (d + h + c) / 2), with device d, host h and copy c. Each
    ``yield`` ends one turn.

    ``clear_cache_every``: the number of decode steps after which the loop returns MLX's cached
    buffers to the system (``SGLANG_MLX_CLEAR_CACHE_STEPS``); 0 means never.
    ``chain_extend``: where the chain would break, schedule the next step and build it on the one in
    flight all the same. SGLang 0.5.23 does not do this; lessons/site/docs/mlx_caches.md measures
    the gain.
    """
    pending_curr: Step | None = None  # launched, and not read yet
    cache = BufferCache(engine, clear_cache_every)
    while True:
        engine.recv_requests()
        pending_next, unsafe = None, ""
        if pending_curr is not None:
            unsafe = why_not_chain(engine, pending_curr.batch, chain_extend)
            if not unsafe:
                pending_next = launch_next(engine, pending_curr, chain_extend)
            finalize(engine, pending_curr, cache)  # blocks while the device runs ``pending_next``
        if pending_next is not None:
            if chain_extend or chain_holds(engine, pending_next.batch):
                pending_curr = pending_next
                yield pending_curr.batch
                continue
            finalize(engine, pending_next, cache)  # the chain breaks; its tokens are still valid
        batch = engine.get_next_batch_to_run()
        if not batch:
            engine.on_idle()
        elif unsafe:
            engine.recording.must_wait(batch, unsafe, "forward")
        pending_curr = launch(engine, batch) if batch else None
        yield batch


def launch(engine: Engine, batch: ScheduleBatch, previous: Step | None = None) -> Step:
    """Build a step's graph, on ``previous``'s tokens if it needs them, and submit it.

    ``prepare_batch`` ships the inputs. Masks and penalties come next, because they are part of the
    graph. ``launch_batch`` launches the ops, and ends in one ``mx.async_eval`` of the tokens and
    of the caches that the step wrote (``MlxDevice.flush``). All rows are one graph; in the original
    a prompt is a graph of its own.
    """
    step = engine.prepare_batch(batch, previous)
    if engine.needs_mask(step):
        engine.update_vocab_mask(step)
    return engine.launch_batch(step)


def launch_next(engine: Engine, pending: Step, chain_extend: bool) -> Step | None:
    """Launch the step after ``pending`` on its lazy tokens; return None if the chain breaks here.

    A chained step repeats a pure decode. Unlike SGLang's it is committed (it takes a slot and
    advances lengths, #30093), so it also needs every request alive and with room.

    With ``chain_extend`` the scheduler chooses the step instead, before it knows ``pending``'s
    result. An extend reads only its prompt, and a decode takes the tokens in flight from
    ``pending``'s array. As in ``overlap``, memory is then released a step later, and a request that
    ends is in one more step.
    """
    batch = None if pending.batch.num_extend_reqs else engine.chain(pending.batch)
    if batch is None and chain_extend:
        batch = engine.get_next_batch_to_run() or None
    return launch(engine, batch, pending) if batch else None


def finalize(engine: Engine, step: Step, cache: BufferCache) -> None:
    """Block until the device has computed a step's graph, and process its tokens."""
    result = engine.wait_for(step)
    if not result.error and step.batch.num_extend_reqs < len(step.batch.reqs):
        cache.on_decode()
    engine.process_result(step, result)


def why_not_chain(engine: Engine, batch: ScheduleBatch, chain_extend: bool) -> str:
    """Return why the next step has to wait for ``batch``'s tokens: a mask or a penalty needs them.

    SGLang's ``MlxPendingJob.chain_safe``, for grammars; it has no penalties yet (#39559).
    """
    would_chain = not batch.num_extend_reqs and can_chain(engine.scheduler, batch)
    return engine.missing_history(batch, steps_ahead=1) if would_chain or chain_extend else ""


def chain_holds(engine: Engine, batch: ScheduleBatch) -> bool:
    """Return whether the next step can chain on ``batch``: no request of it left, none waits."""
    return not batch.has_departed_reqs and not engine.scheduler.waiting_queue


class BufferCache:
    """Returns MLX's cached buffers to the system after every ``every`` decode steps; 0: never."""

    def __init__(self, engine: Engine, every: int) -> None:
        self.device, self.every, self.num_decodes = engine.device, every, 0

    def on_decode(self) -> None:
        """Count a decode step that the host has read."""
        self.num_decodes += 1
        self.device.count_memory()
        if self.every and self.num_decodes % self.every == 0:
            self.device.clear_cache()
            self.device.count_memory()
