"""The steps every loop is made of: receive, schedule, run, process. A loop is their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core import NoBatch, Output, Result, ScheduleBatch
from ..devices.base import NO_LABEL, Label
from ..worker import GenerationBatchResult
from .inbox import Inbox
from .log import SchedulerLog
from .metrics import Metrics
from .step_phases import StepPhases

NAP = 50_000_000  # nanoseconds; how late Ctrl-C may be noticed while everybody sleeps


@dataclass
class Engine(StepPhases):
    """A scheduler, a worker on a device, and a frontend; each method is one phase of the host.

    The names are SGLang's (``managers/scheduler.py``). A phase is a slice on the host lane and
    costs what the cost model says.
    """

    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        super().__post_init__()
        now = self.device.now
        self.frontend.now = now
        self.metrics.started = now()
        self.log = SchedulerLog(self.scheduler, now)
        self.log.on_start()
        self.inbox = Inbox(self.scheduler, self.device, self.metrics)

    def recv_requests(self) -> None:
        """Take in what has arrived."""
        messages = self.frontend.take(self.device.now())
        if not messages:
            return
        label = self.recording.arrival(messages)
        with self.device.host("receive", self.cost.phase("receive", len(messages)), label):
            outputs = self.inbox.process_input_requests(messages)
        self._observe()
        self._stream_output(outputs)

    def get_next_batch_to_run(self) -> ScheduleBatch | NoBatch:
        """Let the scheduler commit a batch."""
        with self.device.host("schedule", self.cost.phase("schedule")):
            batch = self.scheduler.next_batch()
        self._scheduled(batch or None)
        self._stream_output(self.scheduler.take_outputs())
        return batch

    def chain(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        """Let the scheduler commit the same rows once more; a no costs no time."""
        if not self.scheduler.can_chain(batch):
            return None
        with self.device.host("schedule", self.cost.phase("schedule")):
            chained = self.scheduler.chain(batch)
        self._scheduled(chained)
        return chained

    def advance_step(self, pending: GenerationBatchResult) -> GenerationBatchResult | None:
        """Run a decode step's rows once more, one position on, without asking the scheduler.

        vLLM V0 ``worker/multi_step_model_runner.py:_advance_step``. None where they have no room.
        """
        batch = self.scheduler.repeat(pending.batch)
        self._scheduled(batch)
        if batch is None:
            return None
        label = self.recording.label(batch)
        try:
            with self.device.host("prepare", self.cost.phase("advance step", *batch.size), label):
                inputs = self.worker.prepare(batch, pending)
        except Exception as error:
            return self.lose_batch(batch, error)
        return self.launch_batch(batch, inputs, pending)

    def process_batch_result(self, pending: GenerationBatchResult) -> None:
        """Wait for a step's tokens and let the scheduler say what they mean."""
        self.process_result(pending, self.wait_for(pending))

    def process_result(self, pending: GenerationBatchResult, result: Result) -> None:
        """Let the scheduler say what a step's tokens mean, and clients hear it."""
        batch, label = pending.batch, self.recording.label(pending.batch)
        with self.device.host("process", self.cost.phase("process", *batch.size), label) as process:
            outputs = self.scheduler.process(batch, result)
            self.recording.tokens(batch.step, outputs)
        if pending.copy_done is not None:
            self.device.recorder.edge("result", pending.copy_done.slice_id, process)
        self._observe()
        self._stream_output(outputs, label, process)
        self.log.on_processed(batch, outputs)

    def on_idle(self) -> None:
        """Nothing to do until the next request comes: a good moment to look for leaks.

        SGLang ``managers/scheduler.py:self_check_during_idle``.

        Raises:
            MemoryLeak: there is one.
        """
        if self.scheduler.live or self.scheduler.batches_in_flight:
            return
        self.scheduler.self_check()
        arrival = self.frontend.next_arrival
        nap = NAP
        while arrival is not None and self.device.now() < arrival and not self.frontend.has_said:
            self.device.idle_until(min(arrival, self.device.now() + nap))
            nap *= 1 if self.device.clock == "wall" else 2  # a virtual year in a few naps

    @property
    def is_done(self) -> bool:
        """Whether every request has ended and nothing is in flight."""
        scheduler = self.scheduler
        return self.frontend.is_empty and not (scheduler.live or scheduler.batches_in_flight)

    def _scheduled(self, batch: ScheduleBatch | None) -> None:
        """The scheduler has just decided."""
        self._observe()
        self.log.on_schedule(batch)
        if batch:
            self.metrics.on_batch(batch, self.device.now())

    def _observe(self) -> None:
        """The scheduler's state has just changed."""
        scheduler = self.scheduler
        self.recording.count()
        self.metrics.load.observe(
            self.device.now(),
            scheduler.num_used_tokens,
            len(scheduler.running_batch),
            len(scheduler.waiting_queue),
        )

    def _stream_output(
        self, outputs: Sequence[Output], label: Label = NO_LABEL, process: int = 0
    ) -> None:
        """Let clients hear; to say nothing costs nothing. Tokens come from slice ``process``."""
        if not outputs:
            return
        if not process:
            self.recording.tokens(0, outputs)
        self.recording.delivered(outputs, process)
        with self.device.host("output", self.cost.phase("output"), label):
            self.metrics.on_outputs(outputs, self.device.now())
            for output in outputs:
                self.frontend.deliver(output)
