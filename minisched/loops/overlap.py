"""Overlap scheduling: while the device runs step N, the host processes N-1 and schedules N+1."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import GenerationBatchResult
from .overlap_rules import is_disable_overlap_for_batch

AS_OF_0_5_21 = {"enable_skip_finishing_decode": False}
"""Options with which it is the loop of SGLang 0.5.21 and before: a row is wasted for every end."""


def overlap(
    engine: Engine,
    disable_consecutive_prefill_overlap: bool = False,
    delay_sample: bool = False,
    enable_skip_finishing_decode: bool = True,
) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``managers/scheduler.py:event_loop_overlap``. Each ``yield`` ends one turn.

    A batch is scheduled knowing results only up to the one before the last, so a request that has
    just read its stop token is in it once more; that row is wasted. Who ends by length is not: the
    result in flight is known to be the last (``enable_skip_finishing_decode``, on since 0.5.23;
    off it is the loop as of 0.5.21, which wastes a row for every end). A settled step takes
    max(d, h, c, (d + h + c) / 2), with device d, host h, copy c. A batch whose grammar needs a
    token in flight is launched without its sampling, which follows when the result before it has
    been processed. (The original does so wherever there is a grammar, known or not, and with
    ``delay_sample`` every batch here.) For the other option see ``is_disable_overlap_for_batch``.
    """
    engine.scheduler.decode.overrun = 0 if enable_skip_finishing_decode else 1
    result_queue: deque[GenerationBatchResult] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        disable_overlap = is_disable_overlap_for_batch(
            batch,
            last_batch,
            len(result_queue),
            disable_consecutive_prefill_overlap=disable_consecutive_prefill_overlap,
            is_speculative=bool(engine.scheduler.config.speculative_algorithm),
            missing_history=engine.missing_history(batch) if batch else "",
        )
        if disable_overlap and batch:
            engine.recording.must_wait(batch, disable_overlap, "forward")
            engine.process_batch_result(result_queue.popleft())
        if batch:
            delay = engine.must_delay_sample(batch) or delay_sample
            result_queue.append(engine.run_batch(batch, delay_sample=delay))
        if last_batch and not disable_overlap:
            engine.process_batch_result(result_queue.popleft())  # the device runs ``batch``
        elif not batch:
            engine.on_idle()
        if batch:
            launch_batch_sample_if_needed(engine, result_queue[-1])
        last_batch = batch
        yield batch


def launch_batch_sample_if_needed(engine: Engine, pending: GenerationBatchResult) -> None:
    """Sample a step that was launched without: what its mask depends on is known by now."""
    if pending.delay_sample_func is not None:
        engine.update_vocab_mask(pending.batch)
        engine.launch_batch_sample_if_needed(pending)
