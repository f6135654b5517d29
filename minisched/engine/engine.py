"""The engine: a scheduler, a worker on a device and a frontend, and the host's phases between them.

A loop is an order of these phases: ``recv_requests`` handles messages, ``get_next_batch_to_run``
lets the scheduler decide, ``run_batch`` prepares the inputs and launches the step, and
``process_batch_result`` blocks until its tokens have arrived and delivers them. Only the last one
waits for the device. Each phase is a slice on the host lane with the cost model's cost. The names
are those of SGLang's scheduler process (``managers/scheduler.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ..core import ForwardMode, NoBatch, Outputs, Result, ScheduleBatch
from ..devices.base import NO_LABEL, Device, Label, is_out_of_memory
from ..devices.cost import NO_COST, CostModel
from ..memory import self_check
from ..scheduler import Scheduler
from ..scheduler.repeat import can_chain
from ..worker import Step, Worker
from ..worker.lost import build_mask, lose
from ..worker.recording import Recording
from .frontend import Frontend, Message, handle_message
from .log import SchedulerLog, logger
from .metrics import Metrics


@dataclass
class Engine:
    """A scheduler, a worker on a device, and a frontend. Most methods are a phase of the host."""

    scheduler: Scheduler
    worker: Worker[Any]
    device: Device
    frontend: Frontend
    cost: CostModel = NO_COST
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        now = self.device.now
        self.recording = Recording(self.scheduler, self.device)
        self.frontend.now = now
        self.metrics.started = now()
        self.log = SchedulerLog(self.scheduler, now)
        self.log.on_start()

    # -- receive and schedule

    def recv_requests(self) -> None:
        """Handle the messages that have arrived."""
        if self.frontend.has_news:
            self.process_input_requests(self.frontend.take(self.device.now()))

    def process_input_requests(self, messages: Sequence[Message]) -> None:
        """Handle messages of clients (SGLang's name)."""
        if not messages:
            return
        label = self.recording.arrival(messages)
        with self.device.host("receive", self.cost.phase("receive", len(messages)), label):
            for item in messages:
                if (request := handle_message(item, self.scheduler)) is not None:
                    self.metrics.on_received(request, self.device.now())
        self.recording.count()
        self._stream_output(self.scheduler.take_outputs())

    def get_next_batch_to_run(self) -> ScheduleBatch | NoBatch:
        """Let the scheduler commit a batch."""
        with self.device.host("schedule", self.cost.phase("schedule")):
            batch = self.scheduler.next_batch()
        self.on_scheduled(batch or None)
        self._stream_output(self.scheduler.take_outputs())
        return batch

    def chain(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        """Let the scheduler commit the same rows once more; None, at no cost, if it can't."""
        if not can_chain(self.scheduler, batch):
            return None
        with self.device.host("schedule", self.cost.phase("schedule")):
            chained = self.scheduler.chain(batch)
        self.on_scheduled(chained)
        return chained

    # -- run a step

    def run_batch(
        self, batch: ScheduleBatch, previous: Step | None = None, delay_sample: bool = False
    ) -> Step:
        """Prepare the inputs of a step and launch it; return before the device has run it.

        A chained relay takes unknown tokens from ``previous``. With ``delay_sample`` the step does
        not sample before ``launch_batch_sample_if_needed``.
        """
        return self.launch_batch(self.prepare_batch(batch, previous), delay_sample)

    def prepare_batch(
        self, batch: ScheduleBatch, previous: Step | None = None, phase: str = "prepare"
    ) -> Step:
        """Lay a step out and bring its inputs to the device, at the cost of ``phase``.

        If the device has no memory for them, the step fails at its launch, and the loop goes on.
        """
        step: Step = self.worker.step_class(batch)
        try:
            with self.device.host(
                "prepare", self.cost.phase(phase, *batch.size), step.label
            ) as prepare:
                self.worker.prepare(step, previous)
        except Exception as error:
            if not is_out_of_memory(error):
                raise  # a fault of the host's code
            step.error = error
            return step
        if phase == "prepare" and not self.worker.relay.gives_every_input:
            self.recording.tokens_by_host(step.batch, step.edges, prepare)
        return step

    def launch_batch(self, step: Step, delay_sample: bool = False) -> Step:
        """Launch a step; return before the device has run it."""
        if step.error is not None:
            lose(self.worker, step, step.error)
            return step
        builds = self.needs_mask(step)
        with self.device.host("launch", self.launch_cost(step.batch), step.label) as launch:
            self.worker.launch(step, launch, delay_sample or builds)
        if builds and not delay_sample:  # the forward pass runs while the host builds
            self.launch_batch_sample_if_needed(step)
        return step

    def launch_cost(self, batch: ScheduleBatch) -> int:
        """Return the host's cost of a launch, in nanoseconds: a graph is one call, ops are many.

        Decode batches of up to ``cuda_graph_max_bs`` rows have a graph (SGLang
        ``model_executor/cuda_graph_runner.py``). A larger one costs ``launch eager`` and leaves a
        mark. A prompt has no graph, but its step is long and hides the launch.
        """
        launch = self.cost.phase("launch", *batch.size)
        limit = self.scheduler.config.cuda_graph_max_bs
        if limit is None or batch.mode is not ForwardMode.DECODE or len(batch.reqs) <= limit:
            return launch
        self.device.recorder.mark("eager launch", step=batch.step, rows=len(batch.reqs))
        return self.cost.host.get("launch eager", launch)

    # -- sampling that has to wait

    def missing_history(self, batch: ScheduleBatch, steps_ahead: int = 0) -> str:
        """Return in one word why the batch's sampling has to wait, or nothing.

        With ``steps_ahead`` the answer is about a step that many steps later.
        """
        reasons = (item.missing_history(batch, steps_ahead) for item in batch.features)
        return next(filter(None, reasons), "")

    def has_history(self, batch: ScheduleBatch) -> bool:
        """Return whether a token that the step samples depends on the tokens before it."""
        return any(feature.has_history(batch) for feature in batch.features)

    def must_delay_sample(self, batch: ScheduleBatch) -> bool:
        """Return whether a step must be launched without its sampling; mark it if so.

        A loop calls this once for each step, at its launch.
        """
        reason = self.missing_history(batch)
        if reason:
            self.recording.must_wait(batch, reason, "sample")
        return bool(reason)

    def needs_mask(self, step: Step) -> bool:
        """Return whether the host must build something before a step can be sampled."""
        return not all(part.is_ready for part in step.parts)

    def update_vocab_mask(
        self, step: Step, newest: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> None:
        """Build the masks and penalties of a step (SGLang's name; vLLM ``get_grammar_bitmask``).

        ``newest`` has tokens that only the caller knows yet, by request id.
        """
        with self.device.host("mask", self.cost.phase("mask", *step.batch.size), step.label):
            build_mask(self.worker, step, newest)

    def launch_batch_sample_if_needed(self, step: Step) -> None:
        """Launch the sampling of a step that was launched without it, with all that it needs."""
        if step.delay_sample_func is not None:
            if self.needs_mask(step) and step.error is None:
                self.update_vocab_mask(step)
            cost = self.cost.phase("launch sample", *step.batch.size)
            with self.device.host("launch", cost, step.label):
                step.delay_sample_func()

    # -- process a result

    def wait_for(self, step: Step) -> Result:
        """Block until the tokens of a step are on the host; record the time as a slice."""
        start = self.device.now()
        result = step.result()
        self.recording.wait(start, step.label)
        return result

    def process_batch_result(self, step: Step) -> None:
        """Block until the tokens of a step are on the host, and process them."""
        self.process_result(step, self.wait_for(step))

    def process_result(self, step: Step, result: Result) -> Outputs:
        """Let the scheduler process a step's tokens, deliver its outputs, and return them."""
        batch, label = step.batch, step.label
        with self.device.host("process", self.cost.phase("process", *batch.size), label) as process:
            outputs = self.scheduler.process(batch, result)
            self.recording.tokens(batch.step, outputs)
        if step.copy_done is not None:
            self.device.recorder.edge("result", step.copy_done.slice_id, process)
        self.recording.count()
        self._stream_output(outputs, label, process)
        if logger.isEnabledFor(logging.INFO):
            self.log.on_processed(batch, outputs)
        return outputs

    def _stream_output(self, outputs: Outputs, label: Label = NO_LABEL, process: int = 0) -> None:
        """Deliver outputs to clients; ``process`` is the slice that their tokens come from."""
        if not outputs:
            return
        if not process:
            self.recording.tokens(0, outputs)
        self.recording.delivered(outputs, process)
        with self.device.host("output", self.cost.phase("output"), label):
            self.metrics.on_outputs(outputs, self.device.now())
            if self.frontend.on_output is not None:
                for output in outputs:
                    self.frontend.deliver(output)

    # -- idle

    def on_idle(self) -> None:
        """If nothing runs, look for memory leaks and sleep until the next request arrives.

        Raises:
            MemoryLeak: there is one.
        """
        if not (self.scheduler.live or self.scheduler.batches_in_flight):
            self_check(self.scheduler.leases)
            self.frontend.sleep(self.device)

    @property
    def is_done(self) -> bool:
        """Return whether every request has ended and no step is in flight."""
        scheduler = self.scheduler
        return self.frontend.is_empty and not (scheduler.live or scheduler.batches_in_flight)

    def on_scheduled(self, batch: ScheduleBatch | None) -> None:
        """Record the scheduler's decision; None: there is no batch."""
        self.recording.count()
        if logger.isEnabledFor(logging.INFO):
            self.log.on_schedule(batch)
        if batch:
            self.metrics.on_batch(batch, self.device.now())
