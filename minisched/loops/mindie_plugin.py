"""The Python plugin pipeline: a call puts step N and answers with the tokens of step N-1."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from .mindie_plugin_context import GenerationOutput
from .mindie_plugin_manager import PluginManager


def mindie_plugin(engine: Engine) -> Iterator[ScheduleBatch | NoBatch]:
    """MindIE ``plugins/plugin_manager.py`` under this project's scheduler. ``yield`` ends a turn.

    Where the host fills the inputs (``fill_host``, the default), the device has no next step to
    run until N-1's tokens have come to the host: a step takes l + f + max(d + c, h), with device
    d, copy c, fill f, launch l and all other host work h. Where the device does (``fill_device``)
    it takes max(d, h + l, c, (d + c + h + l) / 2), as with every loop of depth 2. A bitmask adds
    its time to l. Each end wastes a row, a length stop too: only post-processing counts tokens, one
    step behind.
    """
    manager = PluginManager(engine)
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        if batch:
            deliver(engine, generate_token_async(manager, batch))
        elif manager.has_output:
            deliver(engine, manager.reset_async_pipeline())
        else:
            engine.on_idle()
        yield batch


def generate_token_async(
    manager: PluginManager,
    batch: ScheduleBatch,
    on_put: Callable[[ScheduleBatch], None] = lambda batch: None,
) -> GenerationOutput:
    """``PluginManager.generate_token_async`` of N: its answer is what N-1 gave.

    ``on_put`` is what the caller does as soon as N is on its way, without waiting for the answer.
    """
    flat = manager.preprocess(batch)  # while the device still runs N-1
    last = manager.get()
    inputs = manager.fill_in_model_result(batch, flat, last)
    item = manager.put(batch, inputs, last)
    try:
        on_put(batch)
        manager.wait_to_postprocess(item, last)
        output = manager.postprocess(last)  # while the device runs N
        manager.update_history(item, last)
    finally:
        item.postprocess_done.set()
    output.fill_dummy(batch)
    return output


def deliver(engine: Engine, output: GenerationOutput) -> None:
    """Let the scheduler and the clients hear of a response, unless it is all dummies."""
    if output.pending is not None:
        engine.process_result(output.pending, output.result)
