"""The scheduler's stream: copies of prompts to the device, beside the step that runs there."""

from __future__ import annotations

from ..core import ScheduleBatch
from ..devices.base import Device, Label, Op, Stream
from ..relay import Relay, UploadRelay


class Uploads:
    """Queues what the relay copies for each step, and lets the step wait for it.

    mini-sglang ``scheduler/scheduler.py:overlap_loop``: the scheduler has a stream of its own, on
    which prompts are copied, and ``engine.stream.wait_stream`` orders the step after them. With
    any relay that is no ``UploadRelay`` there is nothing to copy and no such stream.
    """

    def __init__(self, device: Device, relay: Relay, stream: str) -> None:
        self.recorder = device.recorder
        self.relay = relay if isinstance(relay, UploadRelay) else None
        self.stream = device.stream(stream) if self.relay else None
        self.queued: dict[int, Op] = {}  # step -> the copy that its forward pass has to wait for

    @property
    def gives_every_input(self) -> bool:
        """Whether a step takes all its tokens from the device, also those that the host knows."""
        return self.relay is not None

    def launch(self, batch: ScheduleBatch, reader: Stream, cost: int, label: Label) -> None:
        """Host: queue a step's copy; what is launched on ``reader`` from now on waits for it."""
        if self.relay is None or self.stream is None:
            return
        op = self.relay.upload(self.stream, batch, cost, label)
        if op is not None:
            reader.wait(op)
            self.queued[batch.step] = op

    def take(self, batch: ScheduleBatch, forward: Op) -> Op | None:
        """The copy that ``forward`` waits for, if any. Whoever waits for the step must keep it."""
        op = self.queued.pop(batch.step, None)
        if op is not None:
            self.recorder.edge("upload", op.slice_id, forward.slice_id)
        return op
