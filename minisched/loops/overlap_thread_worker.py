"""The worker's side of the two queues: what the thread does with each batch that was put."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import ModelWorkerBatch, ScheduleBatch
from ..devices.base import Op, Signal
from ..models.forward_batch import make_forward_batch
from ..worker import GenerationBatchResult, Worker
from ..worker.batch_record import BatchRecord
from ..worker.lost_step import lose_step


@dataclass(eq=False)
class FutureStep:
    """What is put into the input queue, and what the scheduler gets back at once.

    ``model_worker_batch`` is still on its way when the step is put; ``sync_event`` says that it is
    there. The thread says ``launch_done`` when the forward pass is on its stream, before it
    samples; ``sampling_info_done`` is what it waits for before sampling, where there is a mask to
    build. ``launched_by`` is the slice of the call ``launched``, its first one for the step.
    """

    batch: ScheduleBatch
    sync_event: Signal
    launch_done: Signal
    sampling_info_done: Signal | None
    launched_by: int = 0
    launched: Op | None = None
    model_worker_batch: ModelWorkerBatch | None = None
    error: Exception | None = None  # of the scheduler, in whose place the thread gives it back

    @property
    def future_next_token_ids(self) -> list[int]:
        """What stands for the step's tokens, [num_reqs]: minus the future slot of each."""
        return [-dest for dest in self.model_worker_batch.dests] if self.model_worker_batch else []


class ForwardThread:
    """SGLang ``managers/tp_worker_overlap_thread.py:forward_thread_func_``, in two calls.

    The original is one loop around ``input_queue.get()``; here the device's thread has the queue,
    and a wait (for ``sync_event`` before the first call, for ``sampling_info_done`` before the
    second one) is an item of it. All work that touches a stream is done here.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.batch_lists = BatchRecord(worker.depth)

    def forward(self, step: FutureStep) -> GenerationBatchResult:
        """Ship the batch, pin it, launch its forward pass, which resolves the future tokens."""
        worker, flat = self.worker, step.model_worker_batch
        try:
            if step.error is not None:
                raise step.error
            assert flat is not None
            inputs = make_forward_batch(flat, worker.device.xp, worker.model.pad_to)
            worker.touches.follow(inputs)
            self.batch_lists.record_batch_in_overlap(inputs)
            return worker.launch(step.batch, inputs, delay_sample=True)
        except Exception as error:
            return lose_step(worker, step.batch, flat, error)
        finally:
            step.launch_done.set()  # whatever happened: the scheduler waits for it

    def sample(self, pending: GenerationBatchResult) -> GenerationBatchResult:
        """Launch sampling, which stores to the map, and the copy to the host."""
        try:
            if pending.delay_sample_func is not None:
                pending.delay_sample_func()
        except Exception as error:
            pending.fail(error)
            return lose_step(self.worker, pending.batch, None, error)
        return pending
