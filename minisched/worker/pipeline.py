"""Pipeline parallelism: a recipe whose forward pass is cut into stages, each on its own stream.

The scheduler hands a batch to stage 0 and to nobody else (vLLM
``v1/worker/gpu_worker.py:execute_model``, ``--pp``). Each later stage receives it from the one
before, together with the hidden states: a ``recv`` on its own stream, as NCCL's is, which takes
``CostModel.recv``. The last stage samples, and the tokens go to the host. Nothing goes back from
the last stage to the first, so a request waits for the host between two steps.

Every stage takes an equal share of ``CostModel.forward``: it stands for a large model cut evenly.
The hash model behind it has so few layers that a stage may have none, and only passes on what it
got.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from ..devices.base import Array
from ..models.base import ForwardBatch, Model
from ..models.hash import HashModel
from ..trace import Touch
from .recording import KV, PAGE_TABLE
from .worker import COPY, FORWARD, SAMPLE, Recipe, Step, StepOp, Worker


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
    """One pipeline rank: some layers with their KV, a page table, a stream.

    The hash model alone can be run layer by layer.
    """

    number: int
    count: int  # of all stages

    @property
    def place(self) -> str:
        """What the names of its own memory begin with."""
        return f"stage {self.number} "

    def layers(self, model: Model) -> range:
        """Which of the model's it holds."""
        return get_pp_indices(cast(HashModel, model).num_layers, self.count)[self.number]

    def cost(self, worker: Worker, step: Step) -> int:
        """Its share."""
        cost = worker.cost.forward(step.inputs.num_tokens)
        return cost * (self.number + 1) // self.count - cost * self.number // self.count

    def touches(self, worker: Worker, step: Step) -> list[Touch]:
        """Its part of what the whole pass touches: its own page table, and KV if it has a layer."""
        has_layers, part = bool(self.layers(worker.model)), list[Touch]()
        for touch in step.touches.forward:
            if touch.resource not in (PAGE_TABLE, KV):
                part.append(touch)
            elif has_layers or (touch.kind, touch.resource) == ("write", PAGE_TABLE):
                part.append(touch._replace(resource=self.place + touch.resource))
        return part

    def __call__(self, worker: Worker, given: ForwardBatch | IntermediateTensors) -> Array:
        """Device: through the stage's layers; the last one gives logits [num_logits, vocab]."""
        if isinstance(given, ForwardBatch):
            given = IntermediateTensors(given, given.ids)
        batch, hidden, error = given
        is_last = self.number == self.count - 1
        page_table, model = worker.page_tables[self.place], cast(HashModel, worker.model)
        if len(batch.table_index):
            page_table[batch.table_index] = batch.table_slots
        try:
            if error is not None:
                raise error
            if self.number == 0:
                hidden = worker.relay.resolve(hidden, None)
            for layer in self.layers(model):
                hidden = model.forward_layer(layer, batch, hidden, page_table)
        except Exception as error:
            if is_last:
                raise
            return given._replace(error=error)
        return model.compute_logits(batch, hidden) if is_last else given._replace(hidden=hidden)


def recv_tensors(worker: Worker, sent: IntermediateTensors) -> IntermediateTensors:
    """Device: take what the stage before has sent (``get_pp_group().recv_tensor_dict``)."""
    return sent


def pipeline(stages: int) -> Recipe:
    """A plain step over so many stages."""
    ops: list[StepOp] = []
    for number in range(stages):
        stage, stream, is_last = Stage(number, stages), f"stage {number}", number == stages - 1
        if number:
            receive = StepOp(
                "recv", recv_tensors, stream, takes=("hidden",), gives="hidden",
                edge=("recv", "hidden"), cost=lambda worker, step: worker.cost.recv,
            )  # fmt: skip
            ops.append(receive)
        forward = replace(
            FORWARD, run=stage, stream=stream, place=stage.place,
            cost=stage.cost, touches=stage.touches,
            takes=("hidden",) if number else ("inputs",),
            gives="logits_output" if is_last else "hidden",
            awaited_by="" if is_last else f"stage {number + 1}",
        )  # fmt: skip
        ops.append(forward)
    return (*ops, replace(SAMPLE, stream=stream), COPY)


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
