"""The worker: launches one step's ops on the forward and the copy stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core import LogitAdjustment, ModelWorkerBatch, Result, ScheduleBatch, get_model_worker_batch
from ..devices.base import Array, Buffer, Device, Label, Op, OrNone, Stream
from ..devices.cost import NO_COST, CostModel
from ..models.base import (
    ForwardBatch,
    GraphModel,
    Model,
    make_forward_batch,
    read_marks,
    without_marks,
)
from ..relay import Relay, UploadRelay
from ..trace import Recorder, Touch
from .failure import memory_for, reason_of
from .logprobs import launch_logprobs, read_logprobs, sampled_logits
from .sampling_info import make_adjustments
from .token_edges import TokenEdges, is_chained
from .touches import Touches

# -- The buffers in which steps leave what the host shall read, and in which it reads that ---------


class Output(NamedTuple):
    """One pair of buffers, and what an op says that touches them."""

    number: int
    on_device: Buffer
    on_host: Buffer

    def left(self, start: int, end: int) -> Touch:
        """An op leaves the integers from ``start`` to ``end``."""
        return Touch("write", f"output {self.number}", range(start, end))

    def copied(self, size: int) -> list[Touch]:
        """The copy brings the first ``size`` integers to the host."""
        return [
            Touch("read", f"output {self.number}", range(size)),
            Touch("write", f"host output {self.number}", range(size)),
        ]


class OutputRing:
    """A ring of ``depth`` pairs of ``size`` integers each; a step uses the one of its number.

    With ``depth`` steps in flight none overwrites the output of another.
    """

    def __init__(self, device: Device, size: int, depth: int) -> None:
        self.buffers: list[tuple[Buffer, Buffer]] = []  # on the device, on the host
        with memory_for(f"the outputs of {depth} steps in flight", device.name):
            for i in range(depth):
                on_device = device.memory(f"output {i}", size)
                self.buffers.append((on_device, device.host_memory(f"host output {i}", size)))
        device.recorder.mark("host buffers", count=len(self), size=size)

    def __len__(self) -> int:
        return len(self.buffers)

    def of(self, step: int) -> Output:
        """Where a step leaves its output."""
        number = step % len(self)
        return Output(number, *self.buffers[number])


# -- What launching a step returns: handles on everything that it will give, under SGLang's names


def nothing() -> None:
    """Nothing."""


@dataclass
class GenerationBatchResult:
    """A step on its way (SGLang ``managers/utils.py:GenerationBatchResult``).

    The nine published fields come first, each with the functions that write it and that read it
    (a test watches runs for them); of an op also those which, on the device, make its value and use
    it. ``batch`` is the step as it was committed; SGLang puts the pair of both into its
    ``result_queue``. A step whose sampling is delayed has neither tokens nor a copy before
    ``delay_sample_func`` was called.
    """

    batch: ScheduleBatch
    logits_output: Op
    """Logits [num_logits, vocab], before anything is sampled. Written by ``launch_forward``, when
    the step is launched; made by ``_forward`` (with drafts ``forward``, in a pipeline
    ``_run_stage``). Read by ``launch_sample``, on the device ``_sample`` (``sample``), and by
    ``launch_logprobs``, on the device ``compute``; by ``launch``, which hands a lazy pass over
    without its sampling; for the trace by ``get`` and ``resolve_last_batch_result``."""
    next_token_ids: Op | None = None
    """Tokens [num_samples]. Written by ``launch_sample``; made by ``_sample`` (``sample``), which
    also leaves them in the relay. Read by the next step's ``launch_forward``, on the device
    ``_forward``, where one is built upon the other; by ``launch_copy``; by ``launch_logprobs``, on
    the device ``compute``; with drafts on the device by ``verify`` and ``draft``; by ``result``;
    for the trace by ``launched``."""
    num_accepted_tokens: Op | None = None
    """How many of each row's tokens count, [num_reqs] (SGLang: accept_lens, with their sum under
    this name); None where no step may carry drafts. Written by ``launch_sample``; made by
    ``verify``, which also leaves the lengths in the relay. Read on the device by ``draft``; when it
    has been copied, by ``result`` and ``_read``: the scheduler takes the rest back; for the trace
    by ``launch_copy``."""
    next_draft_input: Op | None = None
    """Drafts for the step behind this one, [num_reqs * k]; None where the host drafts. Written by
    ``launch_sample``; made by ``draft``, which leaves them in the relay, where the next step's
    forward pass finds them. Read, when it has been copied, by ``result``."""
    extend_input_len_per_req: list[int] = field(default_factory=list)
    """Positions that each prompt computes here, [num_extend_reqs]; empty where nobody wants
    log-probabilities. Written by ``launch_logprobs``, from the batch: the live requests have moved
    on when the result is there. Read by ``input_tokens``, when it is told apart."""
    extend_logprob_start_len_per_req: list[int] = field(default_factory=list)
    """Where in each prompt's part log-probabilities begin, [num_extend_reqs]; the part's length
    where none are wanted. Written by ``launch_logprobs``; read by ``input_tokens``."""
    copy_done: Op | None = None
    """The copy to the host, as an event and a handle. Written by ``launch_copy``, on the copy
    stream, behind the sampling; made by ``copy_to_host``. Read by ``is_done``, which asks whether
    it has run, and by ``result``, which blocks on it, in an overlapping loop one step later; for
    the trace by ``process_result``, ``get`` and ``filled``."""
    delay_sample_func: Callable[[], None] | None = None
    """Launches the sampling. Written by ``launch``, where sampling has to wait for history, and by
    ``launch_sample``, which sets it to None again (#20697). Read, and called, when the result
    before has been processed: by ``launch_batch_sample_if_needed``, by the thread's ``sample``, by
    ``sample_delayed``."""
    future_indices: Array = None
    """Where the relay keeps each row's newest token, on the device, [num_reqs]. Written by
    ``launch_forward``, from what the relay bound. Read by ``launch_sample``; on the device by
    ``_sample`` (with drafts ``verify``), which stores there."""
    upload: Op | None = None  # what the forward pass waited for, if the relay copies prompts
    logprobs: Op | None = None  # the copy of log-probabilities (SGLang: part of logits_output)
    on_read: Callable[[], None] = nothing  # says in the trace that the host has read the copy
    _result: Result | None = field(default=None, init=False)  # once somebody has waited for it

    def result(self) -> Result:
        """Block the host until the copy is there. An error comes back as a result; never raises."""
        if self._result is not None:
            return self._result
        try:
            if self.next_token_ids is None or self.copy_done is None:
                raise RuntimeError("its sampling was delayed, and nobody has launched it since")
            values = self.copy_done.synchronize()
            self.next_token_ids.synchronize()  # done before; raises what the step raised
            for op in (self.num_accepted_tokens, self.next_draft_input, self.upload):
                if op is not None:
                    op.synchronize()  # done before as well
            self.on_read()
            result = self._read(values.tolist())
            if self.logprobs is not None:
                places = self.logprobs.synchronize().tolist()
                result = replace(result, logprobs=read_logprobs(self, result.tokens, places))
        except Exception as error:
            return self.fail(error)
        self._result = result
        return result

    @property
    def has_failed(self) -> bool:
        """Whether it is known by now that the step has no tokens."""
        return self._result is not None and bool(self._result.error)

    def fail(self, error: Exception) -> Result:
        """The step has no tokens; what of it is launched ends before anybody hears of that."""
        self._result = Result((), f"step {self.batch.step} failed: {reason_of(error)}")
        for op in self._launched():
            try:
                op.synchronize()
            except Exception as kept:
                kept.__traceback__ = None  # it names frames, and one of these this step
        return self._result

    def _launched(self) -> Iterator[Op]:
        """Its ops."""
        ops = (self.upload, self.logits_output, self.next_token_ids, self.num_accepted_tokens,
               self.next_draft_input, self.copy_done, self.logprobs)  # fmt: skip
        return (op for op in ops if op is not None)

    def _read(self, values: list[int]) -> Result:
        """Tell apart what the copy brought: tokens, and with speculation two more columns."""
        if self.num_accepted_tokens is None:
            tokens, nan_samples = read_marks(values)
            return Result(tokens, nan_samples=nan_samples)
        num_reqs, num_samples = len(self.batch.reqs), self.batch.num_samples
        tokens, nan_samples = read_marks(values[:num_samples])
        drafts = values[num_samples + num_reqs :]
        accepted = values[num_samples : num_samples + num_reqs]
        return Result(tokens, "", accepted, drafts, nan_samples=nan_samples)


# -- The scheduler's stream: copies of prompts to the device, beside the step that runs there ------


class Uploads:
    """Queues what the relay copies for each step, and lets the step wait for it.

    mini-sglang ``scheduler/scheduler.py:overlap_loop``: the scheduler has a stream of its own, on
    which prompts are copied, and ``engine.stream.wait_stream`` orders the step after them. With
    any relay that is no ``UploadRelay`` there is nothing to copy and no such stream.
    """

    def __init__(self, device: Device, relay: Relay, stream: str) -> None:
        self.recorder = device.recorder
        self.relay = relay if isinstance(relay, UploadRelay) else None
        self.stream = device.stream(stream) if self.relay else None
        self.queued: dict[int, Op] = {}  # step -> the copy that its forward pass has to wait for

    @property
    def gives_every_input(self) -> bool:
        """Whether a step takes all its tokens from the device, also those that the host knows."""
        return self.relay is not None

    def launch(self, batch: ScheduleBatch, reader: Stream, cost: int, label: Label) -> None:
        """Host: queue a step's copy; what is launched on ``reader`` from now on waits for it."""
        if self.relay is None or self.stream is None:
            return
        op = self.relay.upload(self.stream, batch, cost, label)
        if op is not None:
            reader.wait(op)
            self.queued[batch.step] = op

    def take(self, batch: ScheduleBatch, forward: Op) -> Op | None:
        """The copy that ``forward`` waits for, if any. Whoever waits for the step must keep it."""
        op = self.queued.pop(batch.step, None)
        if op is not None:
            self.recorder.edge("upload", op.slice_id, forward.slice_id)
        return op


# -- What history does to the logits of steps that are launched and yet to be sampled --------------


class UnsampledSteps:
    """Masks and penalties by step, from when the host builds them until sampling is launched.

    (SGLang keeps them in the batch: ``sampling/sampling_batch_info.py:update_regex_vocab_mask``.)
    Whoever does not ask for them before has them built when sampling is launched.
    """

    def __init__(self, late_penalties: bool, recorder: Recorder) -> None:
        self.late_penalties = late_penalties
        self.recorder = recorder
        self.adjustments: dict[int, list[LogitAdjustment | None]] = {}

    def update_vocab_mask(
        self, batch: ScheduleBatch, newest: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Host: build them, from what is known now; for ``newest`` see ``make_adjustments``."""
        self.adjustments[batch.step] = made = make_adjustments(batch, self.late_penalties, newest)
        if made and self.recorder.is_on:
            self.record(batch, made)

    def take(self, batch: ScheduleBatch) -> list[LogitAdjustment | None]:
        """Host: how each sample's logits are to be changed, [num_samples]; empty if none is."""
        if batch.step not in self.adjustments:
            self.update_vocab_mask(batch)
        return self.adjustments.pop(batch.step)

    def record(self, batch: ScheduleBatch, made: list[LogitAdjustment | None]) -> None:
        """Mark how many tokens each row's grammar allows, at each place that it samples."""
        rest = iter(made)
        for req, num_samples in zip(batch.reqs, batch.sample_lens, strict=True):
            masks = [item.vocab_mask for item in islice(rest, num_samples) if item is not None]
            counts = [
                int.from_bytes(mask, "little").bit_count() for mask in masks if mask is not None
            ]
            if counts:
                allowed = " ".join(map(str, counts))
                self.recorder.mark("grammar mask", step=batch.step, rid=req.rid, allowed=allowed)

    def __contains__(self, batch: ScheduleBatch) -> bool:
        return batch.step in self.adjustments


class Worker:
    """Runs batches on one device with one model and one relay (SGLang ``managers/tp_worker.py``).

    A step is three ops. ``forward`` resolves the input tokens, fills the page table and computes
    logits; ``sample`` chooses tokens, stores them in the relay and leaves them in an output
    buffer; ``copy``, on the copy stream, brings that buffer to the host. Output buffers come from
    a ring, one for each of the ``depth`` steps that can be in flight: step N's must not be
    overwritten before the host has read it.
    """

    touches_of = Touches

    def __init__(
        self,
        device: Device,
        model: Model,
        relay: Relay,
        *,
        num_slots: int,
        max_running_requests: int,
        max_len: int,
        page_size: int = 1,
        depth: int = 2,
        cost: CostModel = NO_COST,
        scheduler_stream: str = "scheduler",
        late_penalties: bool = False,
        cuda_graph_max_bs: int | None = None,
    ) -> None:
        self.device = device
        self.model = model
        self.relay = relay
        self.max_len, self.page_size, self.cost = max_len, page_size, cost
        model.allocate(device, num_slots, max_len)
        self.page_table = device.memory("page table", (max_running_requests + 1) * max_len)
        if isinstance(model, GraphModel):
            rows = max_running_requests
            max_bs = rows if cuda_graph_max_bs is None else min(rows, cuda_graph_max_bs)
            self.page_table = model.init_cuda_graphs(device, self.page_table, max_bs)
        device.recorder.mark("row length", **{"page table": max_len, "token pool": max_len})
        self.max_running_requests = max_running_requests
        self.depth = depth
        self.unsampled = UnsampledSteps(late_penalties, device.recorder)
        self.outputs = OutputRing(device, self.output_len, depth)
        self.forward_stream = device.stream("forward")
        self.copy_stream = device.stream("copy")
        self.uploads = Uploads(device, relay, scheduler_stream)
        self.touches = self.touches_of(device.recorder.program, relay, max_len, page_size)
        self.token_edges = TokenEdges(self)
        self.laid_out: ModelWorkerBatch | None = None  # the newest step that the relay has bound

    @property
    def output_len(self) -> int:
        """Integers that a step can leave for the host."""
        return self.max_running_requests

    def prepare(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None
    ) -> ForwardBatch:
        """Host: number the unknown tokens, lay the batch out flat, ship it."""
        ids, dests = self.relay.bind(batch, previous.batch if previous else None)
        flat = get_model_worker_batch(batch, ids, dests, self.max_len, self.page_size)
        self.laid_out = flat
        self.declare(batch, flat)
        inputs = make_forward_batch(flat, self.device.xp, self.model.pad_to)
        self.uploads.launch(batch, self.forward_stream, self.cost.copy, inputs.label)
        return inputs

    def declare(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> None:
        """Host: a step is bound and laid out; say what it will touch, and whose tokens it takes."""
        self.touches.declare(batch, flat)
        self.token_edges.lay_out(batch, flat)

    def launch(
        self,
        batch: ScheduleBatch,
        inputs: ForwardBatch,
        previous: GenerationBatchResult | None = None,
        launched_by: int = 0,
        delay_sample: bool = False,
    ) -> GenerationBatchResult:
        """Host: queue the step's three ops and return at once; ``launched_by`` is a slice's id.

        With ``delay_sample`` only the forward pass is queued; ``delay_sample_func`` of what comes
        back queues the rest.
        """
        pending = self.launch_forward(batch, inputs, previous, launched_by)
        if delay_sample:
            self.device.flush(pending.logits_output)
            pending.delay_sample_func = partial(self.launch_sample, pending, inputs)
        else:
            self.launch_sample(pending, inputs)
        return pending

    def launch_forward(
        self,
        batch: ScheduleBatch,
        inputs: ForwardBatch,
        previous: GenerationBatchResult | None = None,
        launched_by: int = 0,
    ) -> GenerationBatchResult:
        """Host: queue the forward pass."""
        logits = self.forward_stream.launch(
            self._forward, batch, replace(inputs),
            self._built_upon(previous),
            name="forward", cost=self.cost.forward_rows(inputs.extents), label=inputs.label,
            touches=self.touches.of(batch).forward,
        )  # fmt: skip
        self.device.recorder.edge("launch", launched_by, logits.slice_id)
        self.token_edges.launched(batch, logits, previous)
        return GenerationBatchResult(
            batch, logits, future_indices=inputs.dests,
            upload=self.uploads.take(batch, logits),
        )  # fmt: skip

    def launch_sample(self, pending: GenerationBatchResult, inputs: ForwardBatch) -> None:
        """Host: queue sampling, and the copy of the tokens to the host."""
        batch, label, cost = pending.batch, inputs.label, self.cost
        inputs = replace(inputs, adjustments=self.unsampled.take(batch))
        output = self.outputs.of(batch.step)
        pending.delay_sample_func = None
        pending.next_token_ids = tokens = self.forward_stream.launch(
            self._sample, pending.logits_output, inputs, pending.future_indices,
            output.on_device, name="sample", cost=cost.sample_rows(len(batch.reqs)), label=label,
            touches=[*self.touches.take(batch).sample, output.left(0, len(batch.reqs))],
        )  # fmt: skip
        self.launch_copy(pending, tokens, len(batch.reqs), inputs)

    def launch_copy(
        self, pending: GenerationBatchResult, last: Op, size: int, inputs: ForwardBatch
    ) -> None:
        """Host: queue the copy of the ``size`` integers that are there when ``last`` has ended.

        And log-probabilities, where somebody wants some.
        """
        batch, tokens = pending.batch, pending.next_token_ids
        assert tokens is not None
        output = self.outputs.of(batch.step)
        self.copy_stream.wait(last)
        pending.copy_done = copy = self.copy_stream.launch(
            self.device.copy_to_host, output.on_host, output.on_device, size,
            name="copy", cost=self.cost.copy, label=inputs.label, touches=output.copied(size),
        )  # fmt: skip
        uploaded = pending.upload is not None
        pending.on_read = partial(self.touches.read_back, batch, output.number, size, uploaded)
        self.device.recorder.edge("copy", last.slice_id, copy.slice_id)
        launch_logprobs(self, pending, inputs)
        self.device.flush(tokens, copy)
        self.token_edges.sampled(batch, tokens, pending.num_accepted_tokens or tokens, copy)

    def lost(self, pending: GenerationBatchResult) -> None:
        """Host: a step was lost (``lost_step.py``); ``pending`` stands in for it."""

    def _built_upon(self, previous: GenerationBatchResult | None) -> OrNone | None:
        """The tokens of the step before, where the relay takes them as they are.

        Should that step fail, this one runs all the same: of those whose tokens are missing nobody
        is left, and it may have others.
        """
        tokens = previous.next_token_ids if previous and is_chained(self.relay) else None
        return OrNone(tokens) if tokens else None

    def _forward(self, batch: ScheduleBatch, inputs: ForwardBatch, previous: Array | None) -> Array:
        """Device: logits [num_logits, vocab]."""
        # The table comes first: should the rest fail, the step behind this one still relies on it.
        if len(inputs.table_index):
            self.page_table[inputs.table_index] = inputs.table_slots
        ids = self.relay.resolve(inputs.ids, previous)
        self.token_edges.took(batch, ids)
        return self.model.forward(inputs, ids, self.page_table)

    def _sample(self, logits: Array, inputs: ForwardBatch, dests: Array, output: Array) -> Array:
        """Device: tokens [num_reqs], also left in the relay and, marked, in the output buffer."""
        logits = sampled_logits(self.device.xp, inputs, logits)
        marked = self.model.sample(logits, inputs)
        tokens = without_marks(self.device.xp, marked)
        self.relay.store(dests, tokens)
        output[: len(inputs.rows)] = marked
        return tokens


# -- Keeps a batch's tensors alive for as long as the device may still read them -------------------


class BatchRecord:
    """A ring of the newest batches (SGLang ``managers/scheduler.py:record_batch_in_overlap``).

    A tensor made for one stream and read on another one belongs to the first: as soon as nobody
    on the host names it, its memory is handed out again, and the other stream reads what somebody
    else has written there (#18744, #2070). So the newest batches stay named, one a slot. A
    batch is recorded before it is launched, and what falls out is as many steps older as there are
    slots: with two, as in the original, it has ended if the host has seen its result by then, which
    holds with two steps in flight. With ``depth`` in flight there are ``depth`` slots, and never
    fewer than two. Here an op on ``cuda`` names what it was given by itself, too
    (``devices/cuda.py:CudaOp``): the record is how SGLang does it, and a second safety.
    """

    def __init__(self, depth: int) -> None:
        slots = max(2, depth)
        self.batch_record_buf: list[ForwardBatch | None] = [None] * slots
        self.batch_record_ct = 0

    def record_batch_in_overlap(self, batch: ForwardBatch) -> None:
        """Pin a batch, and let go of the one that had its slot."""
        self.batch_record_ct = (self.batch_record_ct + 1) % len(self.batch_record_buf)
        self.batch_record_buf[self.batch_record_ct] = batch


class OverlapWorker(Worker):
    """A worker that pins what it ships; the host goes on while the forward stream reads it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batch_record = BatchRecord(self.depth)

    def prepare(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None
    ) -> ForwardBatch:
        """Host: lay the batch out, ship it, pin it."""
        inputs = super().prepare(batch, previous)
        self.touches.follow(inputs)
        self.batch_record.record_batch_in_overlap(inputs)
        return inputs
