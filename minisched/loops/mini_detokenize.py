"""What the scheduler of mini-sglang sends to its detokenizer: one message for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..core import FinishReason, Output
from ..engine.engine import Engine
from ..worker import GenerationBatchResult


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
