"""mini-sglang without overlap: one step after the other, with its inputs from the token pool."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from .mini_detokenize import Reply, SendResult


def mini_normal(
    engine: Engine, send_result: SendResult | None = None
) -> Iterator[ScheduleBatch | NoBatch]:
    """mini-sglang ``scheduler/scheduler.py:normal_loop``. Each ``yield`` ends one turn.

    Receiving blocks only if there is nothing else to do. Everything runs on the engine's stream,
    the copies of prompts too. ``send_result`` gets the messages of each step; by default they are
    marks in the trace.

    Who runs is decided by mini-sglang's own rules (``policy/rules.py``), which are simpler than
    SGLang's: all that those who run may still say is kept back, so that nobody is retracted; a
    chunk may end within a page, and enters the prefix cache with the rest of its prompt.
    """
    reply = Reply(engine, send_result)
    while True:
        if not engine.scheduler.live:
            engine.on_idle()
        engine.recv_requests()
        forward_input = engine.get_next_batch_to_run()
        ongoing_data = engine.run_batch(forward_input) if forward_input else None
        reply.process_last_data(ongoing_data)  # blocks until the step has run
        yield forward_input
