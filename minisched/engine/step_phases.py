"""The device's half of an engine: lay a step out, launch it, wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..core import Result, ScheduleBatch
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..models.forward_batch import ForwardBatch
from ..scheduler import Scheduler
from ..worker import GenerationBatchResult, Worker
from ..worker.failure import is_out_of_memory
from ..worker.lost_step import lose_step
from ..worker.sampling_info import has_history, missing_history
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
        self,
        batch: ScheduleBatch,
        previous: GenerationBatchResult | None = None,
        delay_sample: bool = False,
    ) -> GenerationBatchResult:
        """Prepare the inputs and launch the step; returns before the device has run it.

        ``previous`` is the step whose tokens it is built upon, where the relay wants to be told.
        With ``delay_sample`` the step does not sample before ``launch_batch_sample_if_needed``.
        """
        try:
            inputs = self.prepare_batch(batch, previous)
        except Exception as error:
            return self.lose_batch(batch, error)
        return self.launch_batch(batch, inputs, previous, delay_sample)

    def lose_batch(self, batch: ScheduleBatch, error: Exception) -> GenerationBatchResult:
        """A step whose inputs found no memory on the device has failed; the loop goes on.

        Raises:
            Exception: ``error``, where it is another one: then it is the host's own.
        """
        if not is_out_of_memory(error):
            raise error
        laid_out = self.worker.laid_out
        bound = laid_out if laid_out and laid_out.step == batch.step else None
        return lose_step(self.worker, batch, bound, error)

    def prepare_batch(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None
    ) -> ForwardBatch:
        """Lay a batch out for the device."""
        label = self.recording.label(batch)
        with self.device.host("prepare", self.cost.phase("prepare", *batch.size), label) as prepare:
            inputs = self.worker.prepare(batch, previous)
        if not self.worker.uploads.gives_every_input:
            others = self.worker.token_edges.inputs_of(batch)
            self.recording.tokens_by_host(batch, prepare, others)
        return inputs

    def launch_batch(
        self,
        batch: ScheduleBatch,
        inputs: ForwardBatch,
        previous: GenerationBatchResult | None = None,
        delay_sample: bool = False,
    ) -> GenerationBatchResult:
        """Launch a step; returns before the device has run it.

        A mask that nobody has built yet is built between the forward pass and the sampling.
        """
        label, needs_mask = self.recording.label(batch), self.needs_mask(batch)
        with self.device.host("launch", self.launch_cost(batch), label) as launch:
            delay = delay_sample or needs_mask
            pending = self.worker.launch(batch, inputs, previous, launch, delay)
        if needs_mask and not delay_sample:
            self.update_vocab_mask(batch)
            self.launch_batch_sample_if_needed(pending)
        return pending

    def launch_cost(self, batch: ScheduleBatch) -> int:
        """What launching costs the host: a graph is replayed, or every op launched by itself."""
        limit = self.scheduler.config.cuda_graph_max_bs
        return launch_cost(batch, self.cost, limit, self.device.recorder)

    def missing_history(self, batch: ScheduleBatch, steps_ahead: int = 0) -> str:
        """Why a step's sampling has to wait now; see ``worker/sampling_info.py``."""
        return missing_history(batch, self.scheduler.config.late_penalties, steps_ahead)

    def must_delay_sample(self, batch: ScheduleBatch) -> bool:
        """Whether a step is to be launched without its sampling; if so, that is marked.

        Each loop asks once for each step, when it launches it.
        """
        reason = self.missing_history(batch)
        if reason:
            self.recording.must_wait(batch, reason, "sample")
        return bool(reason)

    def needs_mask(self, batch: ScheduleBatch) -> bool:
        """Whether the host has something to build before a step can be sampled."""
        return has_history(batch) and batch not in self.worker.unsampled

    def update_vocab_mask(
        self, batch: ScheduleBatch, newest: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Build what a step may sample: masks of grammars, and penalties (phase ``mask``).

        SGLang ``sampling/sampling_batch_info.py:update_regex_vocab_mask``, vLLM
        ``get_grammar_bitmask``. ``newest`` are tokens that only the caller knows yet.
        """
        label = self.recording.label(batch)
        with self.device.host("mask", self.cost.phase("mask", *batch.size), label):
            self.worker.unsampled.update_vocab_mask(batch, newest)

    def launch_batch_sample_if_needed(self, pending: GenerationBatchResult) -> None:
        """Launch the sampling of a step that was told to wait with it."""
        if pending.delay_sample_func is not None:
            label, size = self.recording.label(pending.batch), pending.batch.size
            with self.device.host("launch", self.cost.phase("launch sample", *size), label):
                pending.delay_sample_func()

    def wait_for(self, pending: GenerationBatchResult) -> Result:
        """Block until a step's tokens are on the host; the time is a slice, but no work."""
        label, start = self.recording.label(pending.batch), self.device.now()
        result = pending.result()
        self.recording.wait(start, label)
        return result
