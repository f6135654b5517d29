"""The worker's side of the two queues: what the thread does with each batch that was put."""

from __future__ import annotations

from ..core import ModelWorkerBatch, ScheduleBatch
from ..devices.base import Signal
from ..models.forward_batch import make_forward_batch
from ..worker import Pending, Worker
from ..worker.batch_record import BatchRecord


class ForwardThread:
    """SGLang ``managers/tp_worker_overlap_thread.py:forward_thread_func_``, in two calls.

    The original is one loop around ``input_queue.get()``; here the device's thread has the queue,
    and a wait (for ``sync_event`` before the first call, for ``sampling_info_done`` before the
    second one) is an item of it. All work that touches a stream is done here.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.batch_lists = BatchRecord()

    def forward(
        self, batch: ScheduleBatch, model_worker_batch: ModelWorkerBatch, launch_done: Signal
    ) -> Pending:
        """Ship the batch, pin it, launch its forward pass, which resolves the future tokens."""
        worker = self.worker
        try:
            inputs = make_forward_batch(model_worker_batch, worker.device.xp, worker.model.pad_to)
            self.batch_lists.record_batch_in_overlap(inputs)
            return worker.launch(batch, inputs, delay_sample=True)
        finally:
            launch_done.set()  # whatever happened: the scheduler waits for it

    def sample(self, pending: Pending) -> Pending:
        """Launch sampling, which stores to the map, and the copy to the host."""
        if pending.delay_sample_func is not None:
            pending.delay_sample_func()
        return pending
