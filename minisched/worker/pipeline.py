"""A worker whose model is cut into pipeline stages, each on a stream of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

from ..core import ScheduleBatch
from ..devices.base import Array, Buffer, Device, Op, Stream
from ..models.base import ForwardBatch, Model
from ..relay import Relay
from ..trace import Touch
from .touches import KV, PAGE_TABLE
from .worker import GenerationBatchResult, Worker


class LayeredModel(Model, Protocol):
    """A model that can be run layer by layer."""

    num_layers: int

    def forward_layer(
        self, layer: int, batch: ForwardBatch, hidden: Array, page_table: Buffer
    ) -> Array:
        """On the device: hidden states [num_tokens] after a layer; the first one takes the ids."""
        ...

    def compute_logits(self, batch: ForwardBatch, hidden: Array) -> Array:
        """On the device: logits [num_logits, vocab]."""
        ...


class IntermediateTensors(NamedTuple):
    """What a stage hands to the next one: the batch itself, and hidden states [num_tokens].

    Or the error that it stopped with: a page table has to be filled in every stage, for the step
    behind relies on it.
    """

    batch: ForwardBatch
    hidden: Array
    error: Exception | None = None


@dataclass(frozen=True)
class Stage:
    """One pipeline rank: some layers with their KV, a page table, a stream."""

    number: int
    layers: range
    stream: Stream
    page_table: Buffer

    @property
    def place(self) -> str:
        """What the names of its own memory begin with."""
        return f"stage {self.number} "

    def part_of(self, whole: Sequence[Touch]) -> Iterator[Touch]:
        """Of what a forward pass touches: its own page table, and KV if it has a layer."""
        for touch in whole:
            if touch.resource not in (PAGE_TABLE, KV):
                yield touch
            elif self.layers or (touch.kind, touch.resource) == ("write", PAGE_TABLE):
                yield touch._replace(resource=self.place + touch.resource)


class PipelineWorker(Worker):
    """Pipeline parallelism (vLLM ``v1/worker/gpu_worker.py:execute_model``, ``--pp``).

    The scheduler hands a batch to stage 0 and to nobody else. Each later stage receives it from
    the one before, together with the hidden states: a ``recv`` on its own stream, as NCCL's is,
    which takes ``CostModel.recv``. The last stage samples, and the tokens go to the host. Nothing
    goes back from the last stage to the first, so a request waits for the host between two steps.

    Every stage takes an equal share of ``CostModel.forward``: it stands for a large model cut
    evenly. The hash model behind it has so few layers that a stage may have none, and only passes
    on what it got.
    """

    def __init__(
        self, device: Device, model: Model, relay: Relay, *, stages: int, **options: Any
    ) -> None:
        super().__init__(device, model, relay, **options)
        self.layered = cast(LayeredModel, model)
        size = (self.max_running_requests + 1) * self.max_len
        self.stages = [
            Stage(
                i, layers, device.stream(f"stage {i}"), device.memory(f"stage {i} page table", size)
            )
            for i, layers in enumerate(get_pp_indices(self.layered.num_layers, stages))
        ]
        self.forward_stream = self.stages[-1].stream  # where sampling is launched
        self.touches.places = [stage.place for stage in self.stages]

    def launch_forward(
        self,
        batch: ScheduleBatch,
        inputs: ForwardBatch,
        previous: GenerationBatchResult | None = None,
        launched_by: int = 0,
    ) -> GenerationBatchResult:
        """Host: queue the whole pipeline; only stage 0's op is given the batch."""
        record, whole = self.device.recorder.edge, self.touches.of(batch).forward
        first = IntermediateTensors(inputs, inputs.ids)
        op = self._launch_stage(self.stages[0], first, inputs, whole)
        record("launch", launched_by, op.slice_id)
        for stage in self.stages[1:]:
            stage.stream.wait(op)
            received = stage.stream.launch(
                recv_tensors, op, name="recv", cost=self.cost.recv, label=inputs.label
            )
            record("recv", op.slice_id, received.slice_id)
            op = self._launch_stage(stage, received, inputs, whole)
        return GenerationBatchResult(batch, op, future_indices=inputs.dests)

    def _launch_stage(
        self,
        stage: Stage,
        tensors: Op | IntermediateTensors,
        inputs: ForwardBatch,
        whole: Sequence[Touch],
    ) -> Op:
        """Host: queue a stage's forward pass; ``inputs`` only says what it will cost.

        ``whole`` is what all stages together touch.
        """
        cost, count = self.cost.forward(inputs.num_tokens), len(self.stages)
        share = cost * (stage.number + 1) // count - cost * stage.number // count
        return stage.stream.launch(
            self._run_stage, stage, tensors,
            name="forward", cost=share, label=inputs.label, touches=list(stage.part_of(whole)),
        )  # fmt: skip

    def _run_stage(self, stage: Stage, tensors: IntermediateTensors) -> Array:
        """Device: through a stage's layers; the last one gives logits [num_logits, vocab]."""
        batch, hidden, error = tensors
        if len(batch.table_index):
            stage.page_table[batch.table_index] = batch.table_slots
        try:
            if error is not None:
                raise error
            if stage.number == 0:
                hidden = self.relay.resolve(hidden, None)
            for layer in stage.layers:
                hidden = self.layered.forward_layer(layer, batch, hidden, stage.page_table)
        except Exception as error:
            if stage is self.stages[-1]:
                raise
            return tensors._replace(error=error)
        if stage is self.stages[-1]:
            return self.layered.compute_logits(batch, hidden)
        return IntermediateTensors(batch, hidden)


def recv_tensors(sent: IntermediateTensors) -> IntermediateTensors:
    """Device: take what the stage before has sent (``get_pp_group().recv_tensor_dict``)."""
    return sent


def get_pp_indices(num_layers: int, pp_size: int) -> list[range]:
    """Which layers each stage holds (vLLM ``distributed/utils.py:get_pp_indices``).

    What does not divide evenly goes to the stages before the last, which also has the logits to
    compute and to sample from.
    """
    partitions = [num_layers // pp_size] * pp_size
    for i in range(2, num_layers % pp_size + 2):
        partitions[-i] += 1
    ends = [sum(partitions[: i + 1]) for i in range(pp_size)]
    return [range(end - count, end) for end, count in zip(ends, partitions, strict=True)]
