"""vLLM's engine core: one step at a time, or a queue of batches in flight.

``vllm_step`` waits for every step. ``vllm_batch_queue`` keeps a queue of launched batches. While it
has room, the next batch is scheduled and launched (*filling*); then the host blocks on the oldest
one (*harvesting*). The loop has two uses. In a pipeline, the next batch has other requests, one
batch for each stage (``vllm_pp.py``). With async scheduling, it is the next step of the same
requests, with their tokens still in flight (``vllm_async.py``).

Sampling is always a separate call (#26866), because only sampling needs a grammar's mask, which the
host builds while the forward pass runs. A preempted request keeps the outputs of steps in flight
(``keep_stale_outputs``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import Step
from .design import design

STALE = {"keep_stale_outputs": True}
NO_BEAMS = {
    "beam search": "vLLM searches above its engine, with a request for each beam and step (#6226)"
}


@design(
    follows="vLLM v1/engine/core.py:EngineCore.step",
    relays=("host",),
    rules="vllm",
    settings=STALE,
    refuses=NO_BEAMS,
)
def vllm_step(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """vLLM ``v1/engine/core.py:EngineCore.step``. Each ``yield`` ends one turn.

    Like the serial loop it waits for every token; what it hides is the grammar's mask, which the
    host builds while the forward pass runs. ``execute_model`` has no tokens to wait for (its
    future holds None as soon as the pass is launched), so all the waiting is for the sampling.
    """
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            pending = execute_model(engine, batch)
            sample_tokens(engine, pending)
            update_from_output(engine, pending)
        else:
            engine.on_idle()
        yield batch


def execute_model(engine: Engine, batch: ScheduleBatch) -> Step:
    """Launch the forward pass alone, without waiting for it (``non_block=True``)."""
    return engine.run_batch(batch, delay_sample=True)


def sample_tokens(engine: Engine, pending: Step) -> None:
    """Launch the sampling of a step, after its mask if it needs one, without waiting for it."""
    if engine.needs_mask(pending):
        engine.update_vocab_mask(pending)  # get_grammar_bitmask
    engine.launch_batch_sample_if_needed(pending)


def update_from_output(engine: Engine, pending: Step) -> None:
    """Block until a step's tokens are there; process aborts before them.

    vLLM keeps a separate queue of aborts (``_process_aborts_queue``). Here all arrivals are
    received; new requests wait for the next schedule in any case.
    """
    result = engine.wait_for(pending)
    engine.recv_requests()
    engine.process_result(pending, result)


# -- vLLM's batch queue: several steps in flight ---------------------------------------------------


@design(
    follows="vLLM v1/engine/core.py:EngineCore.step_with_batch_queue",
    relays=("host",),
    depth=2,
    rules="vllm",
    settings=STALE,
    refuses={
        "other relays": "every token over the host; with a relay that runs ahead it is loop "
        "'vllm_async'",
        **NO_BEAMS,
    },
)
def vllm_batch_queue(
    engine: Engine, depth: int = 2, harvest_when_done: bool = False
) -> Iterator[ScheduleBatch | NoBatch]:
    """vLLM ``v1/engine/core.py:step_with_batch_queue``. Each ``yield`` ends one turn.

    Filling the queue goes before harvesting: a turn that launched something while there is room
    ends there; otherwise the host blocks on the oldest step. This is vLLM's rule of v0.27.1. From
    #23770 to v0.21 such a turn ended only if the oldest step was ``not batch_queue[-1][0].done()``
    either, so no ended step lay unread. That older rule is ``harvest_when_done``.
    At depth 2 the two are hardly ever apart. At more they are, wherever steps end sooner than the
    queue is full. If requests come 18 ms apart to ``vllm_async:pool:depth=8``, a result lies
    unread for 13.5 ms by the new rule and for 7.0 ms by the older one. If requests wait for their
    tokens, the rules agree, because empty batches fill the queue.

    If a grammar needs a token in flight, its step is *deferred*: its forward pass is launched. Its
    sampling waits until the queue has been harvested (at depth 2 that is the one step that vLLM
    pops). Penalties defer a step, too; in vLLM they wait in the worker (#26467). With async
    scheduling (a relay that runs ahead: ``vllm_async``) a request's output placeholders stand
    for tokens in flight (``vllm_async.py``). A settled step takes max(d, h, c, (d + h +
    c) / depth).

    If no request can be scheduled although there are some, an empty batch (None) is queued, which
    takes a place like any other. So the host spins until the queue is full (by the older rule it
    blocks immediately), and a turn that removes one has no result. A round of the queue has as many
    turns as places, and each empty one costs a schedule.

    Raises:
        ValueError: the depth is less than 1, or more than the relay can serve.
    """
    batch_queue = make_batch_queue(engine, depth)
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        deferred: Step | None = None
        if batch is NoBatch.WAIT:
            batch_queue.appendleft(None)
            if len(batch_queue) < depth and not harvest_when_done:
                yield batch
                continue
        elif batch:
            pending = execute_model(engine, batch)
            if engine.must_delay_sample(batch):  # pending_structured_output_tokens
                deferred = pending
            else:
                sample_tokens(engine, pending)
                batch_queue.appendleft(pending)
                has_ended = harvest_when_done and is_done(batch_queue[-1])
                if len(batch_queue) < depth and not has_ended:
                    yield batch  # filling beats harvesting
                    continue
        elif not batch_queue:
            engine.on_idle()
        while batch_queue:
            oldest = batch_queue.pop()
            if oldest is not None:
                update_from_output(engine, oldest)
            if deferred is None:
                break
        if deferred is not None:
            sample_tokens(engine, deferred)
            batch_queue.appendleft(deferred)
        yield batch


def is_done(pending: Step | None) -> bool:
    """Return whether a step needs no wait: its tokens are on the host, or it has failed.

    vLLM asks the step's future, which ends with the copy of its tokens.
    """
    return pending is None or pending.copy_done is None or pending.copy_done.query()


def make_batch_queue(engine: Engine, depth: int) -> deque[Step | None]:
    """Make an empty queue for ``depth`` steps in flight.

    Raises:
        ValueError: the depth is less than 1, or more than the relay can serve.
    """
    if depth < 1:
        raise ValueError(f"depth is {depth}, but it must be at least 1.")
    relay = engine.worker.relay
    if relay.most_in_flight is not None and depth > relay.most_in_flight:
        raise ValueError(
            f"depth is {depth}, but relay {relay.name!r} allows at most {relay.most_in_flight}: a "
            "token that waits for longer may be overwritten; relay 'pool' allows any depth."
        )
    return deque(maxlen=depth)
