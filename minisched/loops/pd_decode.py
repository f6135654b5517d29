"""The decode side of PD separation: clients hear it; it reserves pages, waits for KV, decodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..core import NoBatch, Output, Request, ScheduleBatch
from ..core.model_worker_batch import slots_of
from ..devices.base import Label
from ..scheduler.prealloc import DecodeScheduler
from ..worker import GenerationBatchResult
from .overlap import launch_batch_sample_if_needed
from .pd_messages import Abort, Computed, Message, Metadata, Transferred
from .pd_side import SideEngine


def pd_decode(engine: DecodeEngine) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``disaggregation/decode.py:event_loop_overlap_disagg_decode``."""
    result_queue: deque[GenerationBatchResult] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        engine.process_decode_queue()
        batch = engine.get_next_batch_to_run()
        if batch:
            delay = engine.must_delay_sample(batch)
            result_queue.append(engine.run_batch(batch, delay_sample=delay))
        if last_batch:
            engine.process_batch_result(result_queue.popleft())
        elif not batch:
            engine.on_idle()
        if batch:
            launch_batch_sample_if_needed(engine, result_queue[-1])
        last_batch = batch
        yield batch


@dataclass
class DecodeEngine(SideEngine):
    """An engine that receives KV. A request's first token is heard when its KV has arrived."""

    scheduler: DecodeScheduler

    def process_decode_queue(self) -> None:
        """Hear the prefill side; tell it whom nobody wants, and where KV may go."""
        messages = self.hear()
        if messages:
            asked = [self.scheduler.unanswered.get(message.room) for message in messages]
            live = [req for req in asked if req is not None and not req.finished]
            label = Label(rids=tuple(req.rid for req in live))
            with self.device.host("receive", self.cost.host.get("receive", 0), label):
                outputs = [output for message in messages for output in self._hear(message)]
            self._observe()
            self._stream_output(outputs)
            self._arrived(messages, asked)
        for room in self.scheduler.take_given_up():
            self.say(Abort(room))
        self._preallocate()

    def _hear(self, message: Message) -> list[Output]:
        if isinstance(message, Computed):
            self.scheduler.prefilled(message.room)
        if not isinstance(message, Transferred):
            return []
        return self.scheduler.answered(message.room, message.token, message.error, message.logprobs)

    def _arrived(self, messages: list[Message], asked: list[Request | None]) -> None:
        """Let the trace know which transfer the next step of a request builds upon."""
        for message, req in zip(messages, asked, strict=True):
            if isinstance(message, Transferred) and req is not None and not req.finished:
                self.recording.delivered_by[req.rid] = message.slice_id

    def _preallocate(self) -> None:
        found = self.scheduler.pop_preallocated()
        if not found:
            return
        label = Label(rids=tuple(req.rid for req, _ in found))
        with self.device.host("send", self.cost.host.get("send", 0), label):
            for req, lease in found:
                slots = slots_of(lease.pages, self.scheduler.config.page_size)
                self.say(Metadata(req.bootstrap_room, slots[: len(req.prompt)]))
        self._observe()
