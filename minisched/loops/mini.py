"""mini-sglang's overlap: two streams, a token pool between them, and one step of lag."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from ..core import FinishReason, NoBatch, Output, ScheduleBatch
from ..engine.engine import Engine
from ..scheduler.config import ALGORITHMS
from ..worker import GenerationBatchResult, Worker
from .design import design

# -- What the scheduler of mini-sglang sends to its detokenizer: one message for each token --------


@dataclass(frozen=True)
class DetokenizeMsg:
    """mini-sglang ``message/tokenizer.py``; ``uid`` is a number there, here the request's id."""

    uid: str
    next_token: int
    finished: bool


SendResult = Callable[[list[DetokenizeMsg]], None]


class Reply:
    """Hears the engine's outputs and sends them on step by step (``_process_last_data``).

    A request that is aborted, refused or failed ends without a token, so no message says so: in
    the original its client is told by somebody else. A wasted row gives no message either; at
    mini-sglang 20fcd7f its token is sent after the last one.
    """

    def __init__(self, engine: Engine, send_result: SendResult | None = None) -> None:
        self.engine = engine
        self.send_result = send_result or self.mark
        self.messages: list[DetokenizeMsg] = []
        self.on_output = engine.frontend.on_output
        engine.frontend.on_output = self.hear

    def hear(self, output: Output) -> None:
        """Note a token, and let the client hear it as before."""
        self.on_output(output)
        if output.token is not None:
            finished = output.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
            self.messages.append(DetokenizeMsg(output.rid, output.token, finished))

    def process_last_data(self, last_data: GenerationBatchResult | None) -> None:
        """Block until a step's tokens are there, process them, and send what clients get."""
        if last_data is not None:
            self.engine.process_batch_result(last_data)
            reply, self.messages = self.messages, []
            self.send_result(reply)

    def mark(self, reply: list[DetokenizeMsg]) -> None:
        """Leave the messages in the trace, where nobody else takes them."""
        for message in reply:
            self.engine.device.recorder.mark("detokenize", **vars(message))


# -- mini-sglang without overlap: one step after the other, with its inputs from the token pool ----


NOT_THERE = {
    **dict.fromkeys(("grammar", "penalties"), "mini-sglang has none (core.py:SamplingParams)"),
    **dict.fromkeys(ALGORITHMS, "mini-sglang has no speculation"),
}


@design(
    follows="mini-sglang scheduler/scheduler.py:normal_loop",
    relays=("token_pool", "host"),
    rules="mini-sglang",
    worker=partial(Worker, scheduler_stream="forward"),  # all of it is on the engine's stream
    refuses=NOT_THERE,
)
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


@design(
    follows="mini-sglang scheduler/scheduler.py:overlap_loop",
    relays=("token_pool", "ring", "pool", "prev_sampled", "fill_device"),
    depth=2,
    rules="mini-sglang",
    refuses=NOT_THERE,
)
def mini_overlap(
    engine: Engine, send_result: SendResult | None = None
) -> Iterator[ScheduleBatch | NoBatch]:
    """mini-sglang ``scheduler/scheduler.py:overlap_loop``. Each ``yield`` ends one turn.

    While the engine's stream runs a step, the host processes the one before. Receiving blocks only
    if nothing is to be processed and nothing can run. Prompts are copied on the scheduler's
    stream, and the engine's stream waits for that (``worker/worker.py``). Lengths advance at the
    launch (``complete_one``), so only a stop token wastes a row. A settled step takes
    max(d, h, c, (d + h + c) / 2). ``send_result`` gets the messages of each step; by default they
    are marks in the trace.

    The way from prompt to answer, with the original's names: a launched step completes one
    (``complete_one``: the cached length is the device's, which grows by one), and whoever may go on
    joins those who decode (``filter_reqs``); a chunk does not. Here ``scheduler.py`` does both.

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
