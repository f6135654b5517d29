"""The scheduler's side of a worker thread: put a batch into a queue, get its result from another.

SGLang ``managers/tp_worker_overlap_thread.py:TpModelWorkerClient``, which #11210 removed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..core import ModelWorkerBatch, Result, ScheduleBatch, get_model_worker_batch
from ..devices.base import Op, Signal
from ..engine.engine import Engine
from ..worker import Pending
from .overlap_rules import update_vocab_mask
from .tp_worker_thread import ForwardThread


@dataclass(eq=False)
class FutureStep:
    """What the client gives back at once: nobody has launched the step yet.

    ``future_next_token_ids`` [num_reqs] stand for its tokens: minus the future slot of each. The
    thread says ``launch_done`` when the forward pass is on its stream, before it samples;
    ``sampling_info_done`` is what it waits for before sampling, where there is a mask to build.
    ``launched`` and ``sampled`` are the thread's two calls; the value of both is the ``Pending``.
    """

    batch: ScheduleBatch
    future_next_token_ids: list[int]
    launch_done: Signal
    sampling_info_done: Signal | None
    launched: Op
    sampled: Op


class TpModelWorkerClient:
    """Stands in for the worker; the worker itself is on a thread, behind two queues.

    ``input_queue`` is the queue of that thread, ``output_queue`` holds its answers in the order
    of steps. Nothing that the thread reads is changed by the host after it was put.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.device = engine.device
        self.input_queue = engine.device.thread("worker thread")
        self.output_queue: deque[Op] = deque()
        self.forward_thread = ForwardThread(engine.worker)

    def forward_batch_generation(self, batch: ScheduleBatch, needs_mask: bool) -> FutureStep:
        """Put a batch into the input queue; returns before anything of it is launched."""
        device, cost = self.device, self.engine.cost.host
        label = self.engine.recording.label(batch)
        sync_event = device.signal(f"sync_event {batch.step}")
        launch_done = device.signal(f"launch_done {batch.step}")
        info_done = device.signal(f"sampling_info_done {batch.step}") if needs_mask else None
        model_worker_batch = self._get_model_worker_batch(batch, sync_event)
        self.input_queue.wait(sync_event)
        launched = self.input_queue.launch(
            self.forward_thread.forward, batch, model_worker_batch, launch_done,
            name="launch", cost=self.engine.launch_cost(batch), label=label,
        )  # fmt: skip
        if info_done is not None:
            self.input_queue.wait(info_done)
        sampled = self.input_queue.launch(
            self.forward_thread.sample, launched,
            name="launch sample", cost=cost.get("launch sample", 0), label=label,
        )  # fmt: skip
        self.output_queue.append(sampled)
        future_ids = [-dest for dest in model_worker_batch.dests]
        return FutureStep(batch, future_ids, launch_done, info_done, launched, sampled)

    def resolve_last_batch_result(
        self, last: FutureStep, launch_done: Signal | None
    ) -> tuple[Pending, Result]:
        """Block until the last step's tokens are there, and the current step's forward launched.

        ``launch_done`` is the current step's. The original waits for it so that the scheduler's
        work does not take the interpreter from the thread while that launches kernels. An error
        comes back as a result; never raises.
        """
        pending, start = Pending(last.batch, last.launched), self.device.now()
        try:
            pending = self.output_queue.popleft().synchronize()
            if launch_done is not None:
                launch_done.synchronize()
            result = pending.result()
            self.device.recorder.edge("launch", last.launched.slice_id, pending.logits.slice_id)
        except Exception as error:
            result = Result((), f"step {last.batch.step} failed: {error}")
        self.engine.recording.wait(start, self.engine.recording.label(last.batch))
        return pending, result

    def set_next_batch_sampling_info_done(self, following: FutureStep | None) -> None:
        """Build the next step's mask, now that the tokens before it are known, and say so."""
        if following is not None and following.sampling_info_done is not None:
            update_vocab_mask(self.engine, following.batch)
            following.sampling_info_done.set()

    def _get_model_worker_batch(self, batch: ScheduleBatch, sync_event: Signal) -> ModelWorkerBatch:
        """Lay a batch out flat; ``sync_event`` says that it is."""
        engine, worker = self.engine, self.engine.worker
        label, cost = engine.recording.label(batch), engine.cost.host.get("prepare", 0)
        with self.device.host("prepare", cost, label) as prepare:
            ids, dests = worker.relay.bind(batch, None)
            flat = get_model_worker_batch(batch, ids, dests, worker.max_len, worker.page_size)
            sync_event.set()
        engine.recording.tokens_by_host(batch, prepare)
        return flat
