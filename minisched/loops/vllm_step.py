"""vLLM's engine core without a batch queue: one step, and nothing else in flight."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import GenerationBatchResult


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


def execute_model(engine: Engine, batch: ScheduleBatch) -> GenerationBatchResult:
    """Launch the forward pass and nothing behind it; returns at once (``non_block=True``)."""
    return engine.run_batch(batch, delay_sample=True)


def sample_tokens(engine: Engine, pending: GenerationBatchResult) -> None:
    """Launch the sampling of a step, after the mask where it needs one; returns at once.

    That is why sampling was split from the forward pass (#26866): only it needs the mask.
    """
    if engine.needs_mask(pending.batch):
        engine.update_vocab_mask(pending.batch)  # get_grammar_bitmask
    engine.launch_batch_sample_if_needed(pending)


def update_from_output(engine: Engine, pending: GenerationBatchResult) -> None:
    """Block until a step's tokens are there; aborts that came meanwhile go before them.

    vLLM keeps a queue for aborts alone (``_process_aborts_queue``). Here everything that has
    arrived is taken in; what is new waits for the next schedule in any case.
    """
    result = engine.wait_for(pending)
    engine.recv_requests()
    engine.process_result(pending, result)
