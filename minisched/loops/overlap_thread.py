"""Overlap by a worker thread: the scheduler puts batches, and a second host thread launches them.

This is SGLang before it had streams and a FutureMap in the scheduler (``overlap.py``). A
``TpModelWorkerClient`` (``managers/tp_worker_overlap_thread.py``) replaces the worker, which runs
on a thread with two queues. Putting a batch returns its future tokens immediately: negative slot
numbers that the thread resolves on the device. So the next batch can be scheduled and put while the
thread still launches this one. The price is three signals by which both wait for each other, and
one interpreter for two threads. #11210 takes it out of use, #11300 deletes the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from ..core import NoBatch, Result, ScheduleBatch
from ..devices.base import Op, Signal, is_out_of_memory
from ..engine.engine import Engine
from ..scheduler.config import ALGORITHMS
from ..worker import Step
from ..worker.lost import launch_or_lose
from .design import design


@design(
    follows="SGLang managers/tp_worker_overlap_thread.py (out of use since #11210)",
    relays=("ring", "pool", "prev_sampled", "request_state", "fill_device"),
    depth=2,
    overrun=1,
    pins=2,
    refuses={
        "other relays": "a relay that runs ahead and needs no more than its bind: the client, "
        "which binds a step, queues no copies of prompts, waits for no tokens and names no step "
        "before",
        **dict.fromkeys(
            ALGORITHMS,
            "as long as SGLang had the worker thread, it turned overlap scheduling off with "
            "speculation (server_args.py)",
        ),
    },
)
def overlap_thread(engine: Engine, delay_sample: bool = False) -> Iterator[ScheduleBatch | NoBatch]:
    """SGLang ``event_loop_overlap`` before #11210. Each ``yield`` ends one turn.

    The scheduler puts a batch and processes the one before it, while a thread launches. A step
    takes max(d, c, h + l, l + s, (d + c + h + l) / 2, (e + c + h + l + s) / 2). Device d includes
    sampling e. The copy is c, the scheduler without launching h, the launch of the forward pass l,
    and that of sampling s. So only s runs beside the scheduler, because it waits for
    ``launch_done`` of the batch that it has just put. A batch that needs a mask is sampled after
    ``sampling_info_done``. The original sets it when the previous result is processed; here it is
    set immediately if the mask needs no token of that result. With ``delay_sample`` every batch
    gets a mask, and waits for that result.
    """
    client = TpModelWorkerClient(engine)
    result_queue: deque[FutureStep] = deque()
    last_batch: ScheduleBatch | NoBatch = NoBatch.IDLE
    while True:
        engine.recv_requests()
        batch = engine.get_next_batch_to_run()
        current: FutureStep | None = None
        if batch:
            waits = engine.must_delay_sample(batch) or delay_sample
            current = client.forward_batch_generation(batch, waits)
            result_queue.append(current)
            if not (waits and last_batch):  # without a last batch it is the original's DUMMY_FIRST
                client.set_next_batch_sampling_info_done(current)
        if last_batch:
            launch_done = current.launch_done if current else None
            last = client.resolve_last_batch_result(result_queue.popleft(), launch_done)
            engine.process_result(*last)  # the thread launches, the device runs ``batch``
            client.set_next_batch_sampling_info_done(current)
        elif not batch:
            engine.on_idle()
        last_batch = batch
        yield batch


@dataclass(eq=False)
class FutureStep:
    """An item of the input queue, which the scheduler gets back immediately.

    ``step`` is laid out only after it is put; ``sync_event`` is set then. The thread sets
    ``launch_done`` when the forward pass is on its stream, before it samples. If there is a mask
    to build, it waits for ``sampling_info_done`` before sampling. ``launched_by`` is the slice of
    the thread's first call for the step.
    """

    step: Step
    sync_event: Signal
    launch_done: Signal
    sampling_info_done: Signal | None = None
    launched_by: int = 0


class TpModelWorkerClient:
    """Replaces the worker; the worker itself is on a thread with two queues.

    ``input_queue`` is the queue of that thread. ``output_queue`` holds its answers in the order of
    steps, each available after the step's sampling is launched. Only the thread uses streams. Its
    inputs are frozen when the step's ``sync_event`` is set, and pinned by the worker (the
    original's ``batch_lists``).

    ``forward_thread_func_`` is one loop around ``input_queue.get()``. Here the device's thread has
    the queue, and a round is two calls. A wait is an item of the queue: for ``sync_event`` before
    the first call, for ``sampling_info_done`` before the second.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine, self.device, self.worker = engine, engine.device, engine.worker
        self.input_queue = engine.device.thread("worker thread")
        self.output_queue: deque[Op] = deque()

    # -- the scheduler's side

    def forward_batch_generation(self, batch: ScheduleBatch, waits: bool) -> FutureStep:
        """Put a batch into the input queue; return before any op of it is launched."""
        engine, signal, number = self.engine, self.device.signal, batch.step
        step, cost = self.worker.step_class(batch), engine.cost
        future = FutureStep(step, signal(f"sync_event {number}"), signal(f"launch_done {number}"))
        if waits or engine.has_history(batch):
            future.sampling_info_done = signal(f"sampling_info_done {number}")
        self.input_queue.wait(future.sync_event)
        launched = self.input_queue.launch(
            self.forward, step, future.launch_done,
            name="launch", cost=engine.launch_cost(batch), label=step.label,
        )  # fmt: skip
        if future.sampling_info_done is not None:
            self.input_queue.wait(future.sampling_info_done)
        sampled = self.input_queue.launch(
            launch_or_lose, self.worker, launched,
            name="launch sample", cost=cost.phase("launch sample", *batch.size), label=step.label,
        )  # fmt: skip
        self.output_queue.append(sampled)
        future.launched_by = launched.slice_id
        try:
            took = cost.phase("prepare", *batch.size)
            with self.device.host("prepare", took, step.label) as prepare:
                self.worker.lay_out(step)  # unknown tokens get their numbers
            engine.recording.tokens_by_host(step.batch, step.edges, prepare)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            step.error = error
        future.sync_event.set()
        return future

    def resolve_last_batch_result(
        self, last: FutureStep, launch_done: Signal | None
    ) -> tuple[Step, Result]:
        """Block until the last step's tokens are there, and the current step's forward launched.

        ``launch_done`` is the current step's. The original waits for it so that the scheduler's
        work does not take the interpreter from the thread while that launches kernels. An error
        comes back as a result, be it the device's or the thread's (``launch_or_lose``).
        """
        start, step = self.device.now(), last.step
        self.output_queue.popleft().synchronize()
        if launch_done is not None:
            launch_done.synchronize()
        result = step.result()  # copy_done.synchronize(), then tolist()
        if step.logits_output is not None:
            self.device.recorder.edge("launch", last.launched_by, step.logits_output.slice_id)
        self.engine.recording.wait(start, step.label)
        return step, result

    def set_next_batch_sampling_info_done(self, following: FutureStep | None) -> None:
        """Build the next step's mask, after the tokens before it are known, and set its signal."""
        if following is None or following.sampling_info_done is None:
            return
        if not following.sampling_info_done.query():
            self.engine.update_vocab_mask(following.step)
            following.sampling_info_done.set()

    # -- the thread's side

    def forward(self, step: Step, launch_done: Signal) -> Step:
        """Ship the batch, pin it, launch its forward pass, which resolves the future tokens."""
        try:
            if step.error is None:
                self.worker.ship(step)
        except Exception as error:
            step.error = error
        try:
            return launch_or_lose(self.worker, step, delay_sample=True)
        finally:
            launch_done.set()  # whatever happened: the scheduler waits for it
