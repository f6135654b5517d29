"""The device's half of an engine: lay a step out, launch it, wait for it."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Result, ScheduleBatch
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..models.forward_batch import ForwardBatch
from ..scheduler import Scheduler
from ..worker import GenerationBatchResult, Worker
from .cuda_graph import launch_cost
from .frontend import Frontend
from .recording import Recording


@dataclass
class StepPhases:
    """What happens to a batch between its schedule and its result; each method is one phase."""

    scheduler: Scheduler
    worker: Worker
    device: Device
    frontend: Frontend
    cost: CostModel = NO_COST

    def __post_init__(self) -> None:
        self.recording = Recording(self.scheduler, self.device)

    def run_batch(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None, delay_sample: bool = False
    ) -> GenerationBatchResult:
        """Prepare the inputs and launch the step; returns before the device has run it.

        ``previous`` is the step whose tokens it is built upon, where the relay wants to be told.
        With ``delay_sample`` the step does not sample before ``launch_batch_sample_if_needed``.
        """
        inputs = self.prepare_batch(batch, previous)
        return self.launch_batch(batch, inputs, previous, delay_sample)

    def prepare_batch(self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None) -> ForwardBatch:
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
        previous: GenerationBatchResult | None = None,
        delay_sample: bool = False,
    ) -> GenerationBatchResult:
        """Launch a step; returns before the device has run it."""
        label = self.recording.label(batch)
        with self.device.host("launch", self.launch_cost(batch), label) as launch:
            return self.worker.launch(batch, inputs, previous, launch, delay_sample)

    def launch_cost(self, batch: ScheduleBatch) -> int:
        """What launching costs the host: a graph is replayed, or every op launched by itself."""
        limit = self.scheduler.config.cuda_graph_max_bs
        return launch_cost(batch, self.cost, limit, self.device.recorder)

    def launch_batch_sample_if_needed(self, pending: GenerationBatchResult) -> None:
        """Launch the sampling of a step that was told to wait with it."""
        if pending.delay_sample_func is not None:
            label = self.recording.label(pending.batch)
            with self.device.host("launch", self.cost.host.get("launch sample", 0), label):
                pending.delay_sample_func()

    def wait_for(self, pending: GenerationBatchResult) -> Result:
        """Block until a step's tokens are on the host; the time is a slice, but no work."""
        label, start = self.recording.label(pending.batch), self.device.now()
        result = pending.result()
        self.recording.wait(start, label)
        return result
