"""The C++ scheduler: a gate on outstanding calls, and placeholders for tokens to come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import GenerationBatchResult
from .mindie_placeholder_ledger import PlaceholderLedger, reconcile, sample_delayed

MAX_ASYNC_SCHEDULE_TIMES = 1  # as published


def mindie_placeholder(
    engine: Engine, max_async_schedule_times: int = MAX_ASYNC_SCHEDULE_TIMES
) -> Iterator[ScheduleBatch | NoBatch]:
    """MindIE ``src/engine/llm_engine.cpp:SchedulerThreadEntry``. Each ``yield`` ends one turn.

    With the published gate of 1 there are never two calls outstanding: a placeholder stands for
    no longer than its own step runs, and a step takes d + h + c, as with the serial loop. With 2
    and a relay on the device it takes max(d, h, c, (d + h + c) / 2); an end then wastes one row, a
    length stop too. The original looks every millisecond whether it may go on; here it blocks.

    Raises:
        ValueError: the gate is neither 1 nor 2, or is 2 and no token may be unknown.
    """
    check_gate(engine, max_async_schedule_times)
    ledger = PlaceholderLedger(max_async_schedule_times + 1, engine.device.recorder)
    outstanding: deque[GenerationBatchResult] = deque()  # its length is asyncBatchNum
    while True:
        engine.recv_requests()
        if len(outstanding) >= max_async_schedule_times:
            reconcile(engine, ledger, outstanding.popleft())
        batch = engine.get_next_batch_to_run()
        ledger.clear_terminated()
        if batch:
            delay = engine.must_delay_sample(batch)
            outstanding.append(engine.run_batch(batch, delay_sample=delay))  # AsyncExecuteModel
            ledger.prepare_next_schedule(batch)
            sample_delayed(engine, ledger, outstanding)
        elif outstanding:
            reconcile(engine, ledger, outstanding.popleft())
        else:
            engine.on_idle()
        yield batch


def check_gate(engine: Engine, gate: int) -> None:
    """Whether so many calls may be outstanding.

    Raises:
        ValueError: they may not.
    """
    if gate not in (1, 2):
        raise ValueError(f"max_async_schedule_times is {gate}, but it must be 1 or 2.")
    if gate == 2 and not engine.scheduler.config.run_ahead:
        raise ValueError(
            "max_async_schedule_times is 2, but the relay brings every token over the host; "
            "it must be one that lets a step be launched on tokens that nobody knows yet."
        )
