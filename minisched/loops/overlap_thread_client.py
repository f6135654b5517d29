"""The scheduler's side of a worker thread: put a batch into a queue, get its result from another.

SGLang ``managers/tp_worker_overlap_thread.py:TpModelWorkerClient``: #11210 takes it out of use, and
#11300 deletes the file.
"""

from __future__ import annotations

from collections import deque

from ..core import ModelWorkerBatch, Result, ScheduleBatch, get_model_worker_batch
from ..devices.base import Op, Signal
from ..engine.engine import Engine
from ..worker import GenerationBatchResult
from ..worker.failure import is_out_of_memory
from ..worker.lost_step import left_behind
from .overlap_thread_worker import ForwardThread, FutureStep


class TpModelWorkerClient:
    """Stands in for the worker; the worker itself is on a thread, behind two queues.

    ``input_queue`` is the queue of that thread, ``output_queue`` holds its answers, in the order
    of steps: each is the step's result once its sampling is launched. What the thread reads is
    frozen when the step's ``sync_event`` is set.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.device = engine.device
        self.input_queue = engine.device.thread("worker thread")
        self.output_queue: deque[Op] = deque()
        self.forward_thread = ForwardThread(engine.worker)

    def forward_batch_generation(self, batch: ScheduleBatch, needs_mask: bool) -> FutureStep:
        """Put a batch into the input queue; returns before anything of it is launched."""
        step = self._new_step(batch, needs_mask)
        label, cost = self.engine.recording.label(batch), self.engine.cost
        self.input_queue.wait(step.sync_event)
        launched = self.input_queue.launch(
            self.forward_thread.forward, step,
            name="launch", cost=self.engine.launch_cost(batch), label=label,
        )  # fmt: skip
        if step.sampling_info_done is not None:
            self.input_queue.wait(step.sampling_info_done)
        sampled = self.input_queue.launch(
            self.forward_thread.sample, launched,
            name="launch sample", cost=cost.phase("launch sample", *batch.size), label=label,
        )  # fmt: skip
        self.output_queue.append(sampled)
        step.launched, step.launched_by = launched, launched.slice_id
        try:
            step.model_worker_batch = self._get_model_worker_batch(batch)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            step.error = error
        step.sync_event.set()
        return step

    def _new_step(self, batch: ScheduleBatch, needs_mask: bool) -> FutureStep:
        device, number = self.device, batch.step
        return FutureStep(
            batch,
            sync_event=device.signal(f"sync_event {number}"),
            launch_done=device.signal(f"launch_done {number}"),
            sampling_info_done=(
                device.signal(f"sampling_info_done {number}") if needs_mask else None
            ),
        )

    def resolve_last_batch_result(
        self, last: FutureStep, launch_done: Signal | None
    ) -> tuple[GenerationBatchResult, Result]:
        """Block until the last step's tokens are there, and the current step's forward launched.

        ``launch_done`` is the current step's. The original waits for it so that the scheduler's
        work does not take the interpreter from the thread while that launches kernels. An error
        comes back as a result, be it the device's or the thread's. (There the thread's ends the
        server.)
        """
        start, label = self.device.now(), self.engine.recording.label(last.batch)
        pending = self._launched(last, self.output_queue.popleft())
        if launch_done is not None:
            launch_done.synchronize()
        result = pending.result()  # copy_done.synchronize(), then tolist()
        self.device.recorder.edge("launch", last.launched_by, pending.logits_output.slice_id)
        self.engine.recording.wait(start, label)
        return pending, result

    def _launched(self, step: FutureStep, sampled: Op) -> GenerationBatchResult:
        """What the thread has made of a step; should it have died, as far as that came."""
        try:
            pending: GenerationBatchResult = sampled.synchronize()
        except Exception as error:
            worker, flat = self.engine.worker, step.model_worker_batch
            pending = left_behind(worker, step.batch, flat, step.launched, error)
        step.launched = None  # the call names the step: as a circle they would outlive their use
        return pending

    def set_next_batch_sampling_info_done(self, following: FutureStep | None) -> None:
        """Build the next step's mask, once the tokens before it are known, and say so."""
        if following is None or following.sampling_info_done is None:
            return
        if not following.sampling_info_done.query():
            self.engine.update_vocab_mask(following.batch)
            following.sampling_info_done.set()

    def _get_model_worker_batch(self, batch: ScheduleBatch) -> ModelWorkerBatch:
        """Number the unknown tokens, and lay the batch out flat."""
        engine, worker = self.engine, self.engine.worker
        label, cost = engine.recording.label(batch), engine.cost.phase("prepare", *batch.size)
        with self.device.host("prepare", cost, label) as prepare:
            ids, dests = worker.relay.bind(batch, None)
            flat = get_model_worker_batch(batch, ids, dests, worker.max_len, worker.page_size)
            worker.declare(batch, flat)
        engine.recording.tokens_by_host(batch, prepare, worker.token_edges.inputs_of(batch))
        return flat
