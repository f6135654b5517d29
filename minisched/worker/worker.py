"""The worker: launches one step's ops on the forward and the copy stream."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..core import ModelWorkerBatch, ScheduleBatch, get_model_worker_batch
from ..devices.base import Array, Device, Op, OrNone
from ..devices.cost import NO_COST, CostModel
from ..models.base import GraphModel, Model
from ..models.forward_batch import ForwardBatch, make_forward_batch
from ..models.not_numbers import without_marks
from ..relay import Relay
from .generation_batch_result import GenerationBatchResult
from .logprobs import launch_logprobs, sampled_logits
from .output_ring import OutputRing
from .token_edges import TokenEdges, is_chained
from .touches import Touches
from .unsampled_steps import UnsampledSteps
from .upload import Uploads


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
