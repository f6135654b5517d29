"""vLLM over the stages of a pipeline: the batch queue is as deep as there are stages.

Every token comes over the host, so a request is in one batch at a time, and each stage works on
other requests. The loop is that of ``vllm.py``. This file has its depth and the ops of its step
(``PipelineWorker``).

The scheduler hands a batch to stage 0 only (vLLM ``v1/worker/gpu_worker.py:execute_model``,
``--pp``). Each later stage receives it from the stage before, together with the hidden states: a
``recv`` on its own stream, as NCCL's is, which takes ``CostModel.recv``. The last stage samples,
and the tokens go to the host. The last stage sends nothing to the first, so a request waits for the
host between two steps.

Every stage takes an equal share of ``CostModel.forward``: it stands for a large model cut evenly.
The hash model has so few layers that a stage can have none, and only passes its input on.

``max_concurrent_batches`` is the number of stages where async scheduling is off. A stage is always
busy only if every stage has a batch. No request can be in two of them, because its next token is
known only after the last stage. In steady state a step takes
``max(slowest stage, h, c, latency / batches in flight)``, with the copy c of its tokens to the
host. The latency is that of all stages, the copy and the host, and a single request pays all of it
for every token. Requests that arrive together share a batch, and leave the other stages idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

from ..devices.base import Array, Buffer
from ..models.base import ForwardBatch, Model
from ..scheduler.config import ALGORITHMS
from ..trace import Touch
from ..worker import Step, Worker
from ..worker.recording import KV, PAGE_TABLE
from .design import design
from .vllm import NO_BEAMS, vllm_batch_queue

# -- A forward pass that is cut into stages, each on its own stream --------------------------------


@runtime_checkable
class LayeredModel(Model, Protocol):
    """A model that a pipeline can split, some layers to each stage."""

    num_layers: int

    def forward_layers(
        self, layers: range, batch: ForwardBatch, hidden: Array, page_table: Buffer
    ) -> Array:
        """Device: run some layers and write their KV, but none of padding.

        ``hidden`` are ids for the first layer.
        """
        ...

    def compute_logits(self, batch: ForwardBatch, hidden: Array) -> Array:
        """Device: return logits [num_logits, vocab] of the last layer's output."""
        ...


class IntermediateTensors(NamedTuple):
    """The output of a stage for the next one: the batch and hidden states [num_tokens].

    After an error it still goes on, with the ``error``, because every stage has to fill its page
    table for the next step.
    """

    batch: ForwardBatch
    hidden: Array
    error: Exception | None = None


@dataclass(frozen=True)
class Stage:
    """One pipeline rank: some layers with their KV, a page table, a stream."""

    number: int
    count: int  # of all stages

    @property
    def place(self) -> str:
        """The prefix of the names of its own memory."""
        return f"stage {self.number} "

    @property
    def stream(self) -> str:
        """The stream of the stage."""
        return f"stage {self.number}"

    @property
    def is_last(self) -> bool:
        """True for the stage with the logits and the sampling."""
        return self.number == self.count - 1

    def layers(self, model: Model) -> range:
        """Return the model's layers of this stage."""
        return get_pp_indices(cast(LayeredModel, model).num_layers, self.count)[self.number]

    def cost(self, worker: Worker[Any], step: Step) -> int:
        """Return the stage's share of a step's forward cost, in nanoseconds."""
        cost = worker.cost.forward(step.inputs.num_tokens)
        return cost * (self.number + 1) // self.count - cost * self.number // self.count

    def touches(self, worker: Worker[Any], step: Step) -> list[Touch]:
        """Return its part of the pass's touches: its own page table, and KV if it has a layer."""
        has_layers, part = bool(self.layers(worker.model)), list[Touch]()
        for touch in step.touches.forward:
            if touch.resource not in (PAGE_TABLE, KV):
                part.append(touch)
            elif has_layers or (touch.kind, touch.resource) == ("write", PAGE_TABLE):
                part.append(touch._replace(resource=self.place + touch.resource))
        return part

    def run(self, worker: Worker[Any], given: ForwardBatch | IntermediateTensors) -> Array:
        """Device: run the stage's layers, and return the next stage's input.

        The last stage returns logits [num_logits, vocab].
        """
        if isinstance(given, ForwardBatch):
            given = IntermediateTensors(given, given.ids)
        batch, hidden, error = given
        page_table, model = worker.page_tables[self.place], cast(LayeredModel, worker.model)
        if len(batch.table_index):
            page_table[batch.table_index] = batch.table_slots
        try:
            if error is not None:
                raise error
            hidden = model.forward_layers(self.layers(model), batch, hidden, page_table)
        except Exception as error:
            if self.is_last:
                raise
            return given._replace(error=error)
        if self.is_last:
            return model.compute_logits(batch, hidden)
        return given._replace(hidden=hidden)


class PipelineWorker(Worker[Step]):
    """A worker with a forward pass that is a chain of ops, one on the stream of each stage."""

    def __init__(self, *parts: Any, stages: int, **sizes: Any) -> None:
        self.stages = [Stage(number, stages) for number in range(stages)]
        self.forward_streams = tuple(stage.stream for stage in self.stages)
        self.places = tuple(stage.place for stage in self.stages)
        super().__init__(*parts, **sizes)

    def launch_forward(self, step: Step) -> None:
        """Queue each stage, which takes the output of the stage before it."""
        given: Any = step.inputs
        for stage in self.stages:
            stream = self.device.stream(stage.stream)
            if stage.number:
                stream.wait(given)
                given = self.queue(
                    step, "recv", self.recv_tensors, given, on=stream, cost=self.cost.recv,
                    after=("recv", given),
                )  # fmt: skip
            given = step.logits_output = self.queue(
                step, "forward", partial(stage.run, self), given, on=stream,
                cost=stage.cost(self, step), touches=stage.touches(self, step),
            )  # fmt: skip
        if step.edges is not None:
            self.token_edges.launched(step.edges, given)

    def recv_tensors(self, sent: IntermediateTensors) -> IntermediateTensors:
        """Take the output of the stage before (``get_pp_group().recv_tensor_dict``)."""
        return sent

    def launch_fill(self, step: Step, fill: Callable[..., Array]) -> None:
        """Queue the op that fills the page table of each stage."""
        for stage in self.stages:
            stream = self.device.stream(stage.stream)
            if stage.number and step.logits_output is not None:
                stream.wait(step.logits_output)
            step.logits_output = self.queue(
                step, "page table", fill, self, step.flat, self.page_tables[stage.place],
                on=stream, touches=stage.touches(self, step),
            )  # fmt: skip


def get_pp_indices(num_layers: int, pp_size: int) -> list[range]:
    """Return the layers of each stage (vLLM ``distributed/utils.py:get_pp_indices``).

    Layers that remain after an even division go to the stages before the last, because the last one
    also computes logits and samples.
    """
    partitions = [num_layers // pp_size] * pp_size
    for i in range(2, num_layers % pp_size + 2):
        partitions[-i] += 1
    ends = [sum(partitions[: i + 1]) for i in range(pp_size)]
    return [range(end - count, end) for end, count in zip(ends, partitions, strict=True)]


# -- The designs -----------------------------------------------------------------------------------


for stages in (2, 4):
    design(
        f"vllm_pp{stages}",
        follows="vLLM v1/engine/core.py:step_with_batch_queue, v1/worker/gpu_worker.py",
        depth=stages,
        options={"depth": stages},
        worker=partial(PipelineWorker, stages=stages),
        refuses={
            "other relays": "every token over the host: its first stage reads before the last one "
            "has sampled",
            "real devices": "its stages are streams of the simulated device",
            **NO_BEAMS,
            **dict.fromkeys(
                ALGORITHMS,
                "drafts are made after the last stage, and the first one would have to get them; "
                "vLLM does not combine them (docs/features/speculative_decoding; since lately "
                "EAGLE 3 only)",
            ),
        },
    )(vllm_batch_queue)
