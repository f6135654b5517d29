"""The steps every loop is made of: receive, schedule, run, process. A loop is their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..core import NoBatch, Output, Result, ScheduleBatch
from ..devices.base import NO_LABEL, Device, Label
from ..devices.cost import NO_COST, CostModel
from ..models.forward_batch import ForwardBatch
from ..scheduler import Scheduler
from ..worker import Pending, Worker
from .cuda_graph import launch_cost
from .frontend import Frontend
from .inbox import Inbox
from .log import SchedulerLog
from .metrics import Metrics
from .recording import Recording

NAP = 50_000_000  # nanoseconds; how late Ctrl-C may be noticed while everybody sleeps


@dataclass
class Engine:
    """A scheduler, a worker on a device, and a frontend; each method is one phase of the host.

    The names are SGLang's (``managers/scheduler.py``). A phase is a slice on the host lane and
    costs what the cost model says.
    """

    scheduler: Scheduler
    worker: Worker
    device: Device
    frontend: Frontend
    cost: CostModel = NO_COST
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        now = self.device.now
        self.frontend.now = now
        self.metrics.started = now()
        self.recording = Recording(self.scheduler, self.device)
        self.log = SchedulerLog(self.scheduler, now)
        self.log.on_start()
        self.inbox = Inbox(self.scheduler, self.device, self.metrics)

    def recv_requests(self) -> None:
        """Take in what has arrived."""
        messages = self.frontend.take(self.device.now())
        if not messages:
            return
        label = self.recording.arrival(messages)
        with self.device.host("receive", self.cost.host.get("receive", 0), label):
            outputs = self.inbox.process_input_requests(messages)
        self._observe()
        self._stream_output(outputs)

    def get_next_batch_to_run(self) -> ScheduleBatch | NoBatch:
        """Let the scheduler commit a batch."""
        with self.device.host("schedule", self.cost.host.get("schedule", 0)):
            batch = self.scheduler.next_batch()
        self._scheduled(batch or None)
        self._stream_output(self.scheduler.take_outputs())
        return batch

    def chain(self, batch: ScheduleBatch) -> ScheduleBatch | None:
        """Let the scheduler commit the same rows once more; a no costs no time."""
        if not self.scheduler.can_chain(batch):
            return None
        with self.device.host("schedule", self.cost.host.get("schedule", 0)):
            chained = self.scheduler.chain(batch)
        self._scheduled(chained)
        return chained

    def run_batch(
        self, batch: ScheduleBatch, previous: Pending | None = None, delay_sample: bool = False
    ) -> Pending:
        """Prepare the inputs and launch the step; returns before the device has run it.

        ``previous`` is the step whose tokens it is built upon, where the relay wants to be told.
        With ``delay_sample`` the step does not sample before ``launch_batch_sample_if_needed``.
        """
        inputs = self.prepare_batch(batch, previous)
        return self.launch_batch(batch, inputs, previous, delay_sample)

    def advance_step(self, pending: Pending) -> Pending | None:
        """Run a decode step's rows once more, one position on, without asking the scheduler.

        vLLM V0 ``worker/multi_step_model_runner.py:_advance_step``. None where they have no room.
        """
        batch = self.scheduler.repeat(pending.batch)
        self._scheduled(batch)
        if batch is None:
            return None
        label = self.recording.label(batch)
        with self.device.host("prepare", self.cost.host.get("advance step", 0), label):
            inputs = self.worker.prepare(batch, pending)
        return self.launch_batch(batch, inputs, pending)

    def prepare_batch(self, batch: ScheduleBatch, previous: Pending | None = None) -> ForwardBatch:
        """Lay a batch out for the device."""
        label = self.recording.label(batch)
        with self.device.host("prepare", self.cost.host.get("prepare", 0), label) as prepare:
            inputs = self.worker.prepare(batch, previous)
        if not self.worker.uploads.gives_every_input:
            self.recording.tokens_by_host(batch, prepare)
        return inputs

    def launch_batch(
        self,
        batch: ScheduleBatch,
        inputs: ForwardBatch,
        previous: Pending | None = None,
        delay_sample: bool = False,
    ) -> Pending:
        """Launch a step; returns before the device has run it."""
        label = self.recording.label(batch)
        with self.device.host("launch", self.launch_cost(batch), label) as launch:
            return self.worker.launch(batch, inputs, previous, launch, delay_sample)

    def launch_cost(self, batch: ScheduleBatch) -> int:
        """What launching costs the host: a graph is replayed, or every op launched by itself."""
        limit = self.scheduler.config.cuda_graph_max_bs
        return launch_cost(batch, self.cost, limit, self.device.recorder)

    def launch_batch_sample_if_needed(self, pending: Pending) -> None:
        """Launch the sampling of a step that was told to wait with it."""
        if pending.delay_sample_func is not None:
            label = self.recording.label(pending.batch)
            with self.device.host("launch", self.cost.host.get("launch sample", 0), label):
                pending.delay_sample_func()

    def process_batch_result(self, pending: Pending) -> None:
        """Wait for a step's tokens and let the scheduler say what they mean."""
        self.process_result(pending, self.wait_for(pending))

    def wait_for(self, pending: Pending) -> Result:
        """Block until a step's tokens are on the host; the time is a slice, but no work."""
        label, start = self.recording.label(pending.batch), self.device.now()
        result = pending.result()
        self.recording.wait(start, label)
        return result

    def process_result(self, pending: Pending, result: Result) -> None:
        """Let the scheduler say what a step's tokens mean, and clients hear it."""
        batch, label = pending.batch, self.recording.label(pending.batch)
        with self.device.host("process", self.cost.host.get("process", 0), label) as process:
            outputs = self.scheduler.process(batch, result)
        if pending.copy is not None:
            self.device.recorder.edge("result", pending.copy.slice_id, process)
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
        self.recording.delivered(outputs, process)
        with self.device.host("output", self.cost.host.get("output", 0), label):
            self.metrics.on_outputs(outputs, self.device.now())
            for output in outputs:
                self.frontend.on_output(output)
