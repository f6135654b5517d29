"""The steps every loop is made of: receive, schedule, run, process. A loop is their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ..core import ForwardMode, NoBatch, Output, Request, Result, ScheduleBatch
from ..devices.base import NO_LABEL, Device, Label
from ..devices.cost import NO_COST, CostModel
from ..models.base import ForwardBatch
from ..scheduler import Scheduler
from ..trace import Recorder
from ..worker import GenerationBatchResult, Worker
from ..worker.failure import is_out_of_memory
from ..worker.lost_step import lose_step
from ..worker.sampling_info import has_history, missing_history
from .frontend import AbortReq, FlushCacheReq, Frontend, Message, TypeBasedDispatcher
from .log import SchedulerLog
from .metrics import Metrics
from .recording import Recording

# -- What happens to each message that comes in ----------------------------------------------------


@dataclass
class Inbox:
    """One handler for each type of message (SGLang ``managers/scheduler.py``, under its names)."""

    scheduler: Scheduler
    device: Device
    metrics: Metrics

    def __post_init__(self) -> None:
        self._request_dispatcher = TypeBasedDispatcher([
            (Request, self.handle_generate_request),
            (AbortReq, self.abort_request),
            (FlushCacheReq, self.flush_cache),
        ])  # fmt: skip

    def process_input_requests(self, messages: Iterable[Message]) -> list[Output]:
        """Hand each message to its handler; what clients are to hear of it."""
        return [output for item in messages for output in self._request_dispatcher(item)]

    def handle_generate_request(self, req: Request) -> list[Output]:
        """Put a request into the waiting queue, or refuse it; sent twice, it counts once.

        That is the door: whatever a client has put into the request, nobody else's run ends by it.
        """
        is_known = req.finished or self.scheduler.live.get(req.name) is req
        outputs = self.scheduler.receive([req])
        if not is_known:
            self.metrics.on_received(req, self.device.now())
        return outputs

    def abort_request(self, message: AbortReq) -> list[Output]:
        """End one request, or all of them."""
        rids = list(self.scheduler.live) if message.abort_all else [message.rid]
        return [output for rid in rids for output in self.scheduler.abort(rid, message.error)]

    def flush_cache(self, message: FlushCacheReq) -> list[Output]:
        """Forget the cached prefixes, if nothing runs; a mark says whether it was done."""
        self.device.recorder.mark("flush cache", done=self.scheduler.flush_cache())
        return []


# -- What launching a step costs the host: a captured graph is one call, op by op is many ----------


def launch_cost(
    batch: ScheduleBatch, cost: CostModel, cuda_graph_max_bs: int | None, recorder: Recorder
) -> int:
    """Nanoseconds: ``launch``, or ``launch eager`` for a decode batch too large for any graph.

    Graphs are captured for decode batches of up to ``cuda_graph_max_bs`` rows (None: as many as
    there are; SGLang ``model_executor/cuda_graph_runner.py``). Prompts have no graph; their cost
    is ``launch`` all the same, since a long step hides it. A larger batch leaves a mark, which is
    what SGLang's ``can_run_cuda_graph`` in a result is then: false.
    """
    launch = cost.phase("launch", *batch.size)
    if batch.mode is not ForwardMode.DECODE or cuda_graph_max_bs is None:
        return launch
    if len(batch.reqs) <= cuda_graph_max_bs:
        return launch
    recorder.mark("eager launch", step=batch.step, rows=len(batch.reqs))
    return cost.host.get("launch eager", launch)


# -- The device's half of an engine: lay a step out, launch it, wait for it ------------------------


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

    def process_result(self, pending: GenerationBatchResult, result: Result) -> list[Output]:
        """Let the scheduler say what a step's tokens mean, and clients hear it: what it said."""
        batch, label = pending.batch, self.recording.label(pending.batch)
        with self.device.host("process", self.cost.phase("process", *batch.size), label) as process:
            outputs = self.scheduler.process(batch, result)
            self.recording.tokens(batch.step, outputs)
        if pending.copy_done is not None:
            self.device.recorder.edge("result", pending.copy_done.slice_id, process)
        self._observe()
        self._stream_output(outputs, label, process)
        self.log.on_processed(batch, outputs)
        return outputs

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
