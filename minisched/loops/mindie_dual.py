"""Both layers: the C++ scheduler over the Python plugin, each with its own book of requests."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from .mindie_placeholder import MAX_ASYNC_SCHEDULE_TIMES
from .mindie_placeholder_ledger import PlaceholderLedger
from .mindie_plugin import deliver, generate_token_async
from .mindie_plugin_context import GenerationOutput
from .mindie_plugin_manager import PluginManager


def mindie_dual(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """MindIE as it ships: ``llm_engine.cpp`` calls ``plugin_manager.py``. ``yield`` ends a turn.

    The gate is at 1: C++ never has two calls outstanding, and sleeps while Python works. What runs
    ahead is Python's answer, which is one step late: the first one is a dummy and leaves its
    placeholder standing, so the second step is scheduled on a token that nobody knows. A step
    takes what it takes in ``mindie_plugin``; every request is kept twice.
    """
    manager = PluginManager(engine)
    ledger = PlaceholderLedger(MAX_ASYNC_SCHEDULE_TIMES + 1, engine.device.recorder)
    response: GenerationOutput | None = None  # to the one call that may be outstanding
    while True:
        engine.recv_requests()
        if response is not None:
            take_response(engine, ledger, response)
            response = None
        batch = engine.get_next_batch_to_run()
        ledger.clear_terminated()
        if batch:
            response = generate_token_async(manager, batch, on_put=ledger.prepare_next_schedule)
        elif manager.has_output:
            take_response(engine, ledger, manager.reset_async_pipeline())
        else:
            engine.on_idle()
        yield batch


def take_response(engine: Engine, ledger: PlaceholderLedger, response: GenerationOutput) -> None:
    """C++ fetches the tokens, dummies and all; then the clients hear of them."""
    step = response.pending.batch.step if response.pending else 0
    ledger.fetch_seq_generated_tokens(response.token_ids, step)
    deliver(engine, response)
    ledger.clear_terminated()
