"""Keeps a batch's tensors alive for as long as the device may still read them."""

from __future__ import annotations

from typing import Any

from ..core import ScheduleBatch
from ..models.forward_batch import ForwardBatch
from .generation_batch_result import GenerationBatchResult
from .worker import Worker


class BatchRecord:
    """A ring of the newest batches (SGLang ``managers/scheduler.py:record_batch_in_overlap``).

    A tensor made for one stream and read on another one belongs to the first: as soon as nobody
    on the host names it, its memory is handed out again, and the other stream reads what somebody
    else has written there (#18744, #2070). So the newest batches stay named, one a slot. A
    batch is recorded before it is launched, and what falls out is as many steps older as there are
    slots: with two, as in the original, it has ended if the host has seen its result by then, which
    holds with two steps in flight. With ``depth`` in flight there are ``depth`` slots, and never
    fewer than two. Here an op on ``cuda`` names what it was given by itself, too
    (``devices/cuda.py:CudaOp``): the record is how SGLang does it, and a second safety.
    """

    def __init__(self, depth: int) -> None:
        slots = max(2, depth)
        self.batch_record_buf: list[ForwardBatch | None] = [None] * slots
        self.batch_record_ct = 0

    def record_batch_in_overlap(self, batch: ForwardBatch) -> None:
        """Pin a batch, and let go of the one that had its slot."""
        self.batch_record_ct = (self.batch_record_ct + 1) % len(self.batch_record_buf)
        self.batch_record_buf[self.batch_record_ct] = batch


class OverlapWorker(Worker):
    """A worker that pins what it ships; the host goes on while the forward stream reads it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batch_record = BatchRecord(self.depth)

    def prepare(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None
    ) -> ForwardBatch:
        """Host: lay the batch out, ship it, pin it."""
        inputs = super().prepare(batch, previous)
        self.touches.follow(inputs)
        self.batch_record.record_batch_in_overlap(inputs)
        return inputs
