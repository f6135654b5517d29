"""mini-sglang's overlap: two streams, a token pool between them, and one step of lag."""

from __future__ import annotations

from collections.abc import Iterator

from ..core import NoBatch, ScheduleBatch
from ..engine.engine import Engine
from ..worker import GenerationBatchResult
from .mini_detokenize import Reply, SendResult


def mini_overlap(
    engine: Engine, send_result: SendResult | None = None
) -> Iterator[ScheduleBatch | NoBatch]:
    """mini-sglang ``scheduler/scheduler.py:overlap_loop``. Each ``yield`` ends one turn.

    While the engine's stream runs a step, the host processes the one before. Receiving blocks only
    if nothing is to be processed and nothing can run. Prompts are copied on the scheduler's
    stream, and the engine's stream waits for that (``worker/upload.py``). Lengths advance at the
    launch (``complete_one``), so only a stop token wastes a row. A settled step takes
    max(d, h, c, (d + h + c) / 2). ``send_result`` gets the messages of each step; by default they
    are marks in the trace.

    The way from prompt to answer, with the original's names: a launched step completes one
    (``complete_one``: the cached length is the device's, which grows by one), and whoever may go on
    joins those who decode (``filter_reqs``); a chunk does not. ``scheduler/commit.py`` does both.

    Its rules are mini-sglang's (``policy/rules.py``; ``mini_normal`` says which). In three answers
    these are safer than the original at HEAD, of which each shows only where memory is short:
    memory goes back by the lease rule (``free_rule``: ``deferred`` was published, ``at_once`` is
    at HEAD); nothing is shared whose step still runs (``enters_cache=known``); who ends by
    length keeps its memory until its last token is there (``length_frees=last_launch``: the
    original looks at ``can_decode``, which is false one step too early, as its next step has been
    launched).
    """
    reply = Reply(engine, send_result)
    last_data: GenerationBatchResult | None = None
    while True:
        if last_data is None and not engine.scheduler.live:
            engine.on_idle()
        engine.recv_requests()
        forward_input = engine.get_next_batch_to_run()
        ongoing_data = engine.run_batch(forward_input) if forward_input else None
        reply.process_last_data(last_data)  # the device runs ``ongoing_data``
        last_data = ongoing_data
        yield forward_input
