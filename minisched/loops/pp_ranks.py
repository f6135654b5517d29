"""A pipeline on several processes: each stage a rank, and the scheduler on rank 0 with the first.

The loop is that of ``vllm_pp.py``, unchanged. What it launches on rank 0 is the first stage and, in
the place of the others, a message: the batch, with its hidden states and what sampling needs beside
it, goes to the next rank when the first stage has run (``send``), and the copy of the tokens waits
for the last one's answer. Every other rank has no scheduler: it takes in what the rank before it
sends, runs its layers on a stream of its own, and sends on what comes out, the last one tokens. So
the batch that a stage runs was decided once, and nobody can disagree about it.

Each rank has the whole model open, and memory for all its KV, although only its own layers are
used. Hidden states travel as they are, so the tokens are those of one process to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from ..core import LogitAdjustment, ScheduleBatch
from ..devices.base import Array, Event, Label, Op, RankLost
from ..devices.dist import Ranks, begin, current, gather, needs
from ..devices.thread import TorchDevice
from ..engine.engine import NAP
from ..engine.metrics import Metrics
from ..models.base import ModelWorkerBatch, make_forward_batch
from ..trace import Touch
from ..trace.recorder import to_text
from ..worker import Step
from ..worker.worker import COPY, FORWARD, StepOp, Worker
from .run import RunSetup, drive, setup_of, wire
from .vllm_pp import IntermediateTensors, LayeredModel, Stage

BATCH, TOKENS = "pp batch", "pp tokens"  # tags of messages


@dataclass(frozen=True)
class Job:
    """A step as one rank hands it to the next: laid out, with what each stage will touch."""

    flat: ModelWorkerBatch
    label: Label
    touches: dict[int, list[Touch]]  # by stage
    reply: int  # the signal that the last rank says when it answers
    sent_by: int  # the slice whose hidden states it has with it
    adjustments: list[LogitAdjustment | None] | None  # what sampling needs beside the batch
    error: str = ""  # of a stage before, or of sending it


# -- Rank 0: what stands in for the stages behind the first one ------------------------------------


@dataclass
class Sent:
    """What rank 0's ops know of their step; the last rank's answer comes after ``reply``."""

    step: Step
    reply: int


@dataclass
class FirstRank:
    """What rank 0 launches for a step: its own stage, and messages."""

    ranks: Ranks
    count: int  # of stages

    @property
    def last(self) -> int:
        """The rank that samples."""
        return self.count - 1

    def begin(self, worker: Worker, step: Step) -> ScheduleBatch:
        """Host: a step is laid out, as it was committed."""
        step.extra = Sent(step, worker.device.recorder.new_id())
        return step.batch

    def recipe(self) -> tuple[StepOp, ...]:
        """A step's ops."""
        stage = Stage(0, self.count)
        forward = replace(
            FORWARD, run=stage, stream="stage 0", place=stage.place, touches=stage.touches,
            takes=("inputs",), awaited_by="send",
        )  # fmt: skip
        send = StepOp(
            "send", self.send, "send", takes=("extra", "logits_output", "adjustments"),
            gives="next_token_ids", awaited_by="copy", edge=("recv", "logits_output"),
        )  # fmt: skip
        copy = replace(
            COPY, run=self.take, touches=self.touches_of_copy, edge=("", ""),
            takes=("next_token_ids", "buffer", "num_outputs"),
        )  # fmt: skip
        return forward, send, copy

    def send(
        self,
        worker: Worker,
        sent: Sent,
        stage: IntermediateTensors,
        adjustments: list[LogitAdjustment | None] | None,
    ) -> None:
        """The batch and hidden states, to the next rank.

        All have a page table to fill, so where something can't be sent, at least that is, and the
        last rank answers that the step has failed.
        """
        step = sent.step
        assert step.flat is not None and step.logits_output is not None
        ran, touches = step.logits_output.slice_id, dict[int, list[Touch]]()
        for number in range(1, self.count):
            later = Stage(number, self.count)
            touches[number] = [
                touch._replace(cells=to_text(touch.cells))
                for touch in later.touches(worker, step)
                if touch.resource.startswith(later.place)
            ]
        job = Job(step.flat, step.label, touches, sent.reply, ran, adjustments, said(stage.error))
        try:
            self.ranks.send(1, BATCH, job, [] if job.error else [stage.hidden], after=ran)
        except RankLost:
            raise
        except Exception as error:
            failed = replace(job, adjustments=None, error=said(error))
            self.ranks.send(1, BATCH, failed, after=ran)

    def take(self, worker: Worker, sent: None, buffer: int, size: int) -> Array:
        """Wait for the tokens, or raise what went wrong elsewhere."""
        come = self.ranks.receive(self.last, TOKENS, patient=True)
        if come.value:
            raise RuntimeError(come.value)
        host = worker.host_outputs[buffer][:size]
        host.copy_(come.tensors[0])
        return host

    def touches_of_copy(self, worker: Worker, step: Step) -> Sequence[Touch]:
        """The host's buffer; and the copy goes on only when the last rank has answered."""
        worker.device.stream("copy").wait(TokensOfLastRank(self, worker, step))
        return [Touch("write", f"host output {step.buffer}", range(step.num_outputs))]


class TokensOfLastRank(Event):
    """The last rank's answer, as an event that a stream can wait for; or nothing was ever sent."""

    name = "tokens"

    def __init__(self, first: FirstRank, worker: Worker, step: Step) -> None:
        self.ranks, self.source, self.sent = first.ranks, first.last, step.next_token_ids
        self.slice_id = step.extra.reply
        self.program = worker.device.recorder.program

    def _has_ended(self) -> bool:
        failed = self.sent is not None and self.sent.error is not None
        return failed or self.ranks.has_come(self.source, TOKENS)

    def _wait(self) -> None:
        while not self._has_ended():
            self.ranks.sleep_until_news(NAP / 1e9, self._has_ended)


def said(error: BaseException | None) -> str:
    """What went wrong, in words; empty: nothing."""
    return "" if error is None else f"{type(error).__name__}: {error}"


def whole_run(setup: RunSetup, **options: Any) -> Metrics:
    """Rank 0: run requests through all stages until the last one has ended.

    Raises:
        ValueError: the model has no layers to share out, or somebody wants log-probabilities.
        RankLost: a rank is lost.
    """
    ranks, count, device = current(), setup.spec.num_ranks, cast(TorchDevice, setup.device)
    needs(ranks, count, setup.loop)
    if not isinstance(setup.model, LayeredModel):
        raise ValueError(
            f"loop {setup.loop!r} needs a model cut into layers; {setup.model.name!r} is not."
        )
    if any(req.params.return_logprob for req in setup.requests):
        raise ValueError(
            f"loop {setup.loop!r} gives no log-probabilities on device 'dist': the last rank has "
            "the logits, and sends tokens alone."
        )
    first = FirstRank(ranks, count)
    engine = wire(replace(setup, spec=replace(setup.spec, recipe=first.recipe())))
    worker, config = engine.worker, engine.scheduler.config
    worker.begin = first.begin
    worker.touches.places = [Stage(number, count).place for number in range(count)]
    rows = (config.max_running_requests + 1) * worker.max_len
    sizes = config.num_slots + config.page_size, rows, worker.max_len
    with ranks.calling(later_rank, count, setup.for_others(), *sizes):
        begin(ranks, device, is_new=False)
        engine.metrics.started = device.now()
        drive(setup.spec.start(engine), engine)
        ranks.send(1, BATCH)
        gather(ranks, device)
    return engine.metrics


# -- Every other rank: a stage ---------------------------------------------------------------------


def later_rank(
    ranks: Ranks, count: int, given: tuple[Any, ...], num_slots: int, num_cells: int, max_len: int
) -> None:
    """One stage: take in batches and hidden states, run the layers, send on what comes out.

    Raises:
        RankLost: a rank is lost.
    """
    with setup_of(*given) as setup:
        device, stage = cast(TorchDevice, setup.device), Stage(ranks.rank, count)
        setup.model.allocate(device, num_slots, max_len)
        table = device.memory(f"{stage.place}page table", num_cells)
        begin(ranks, device)
        if ranks.rank < count:
            LaterRank(ranks, device, stage, cast(LayeredModel, setup.model), table).serve()
        gather(ranks, device, partial(name_of, ranks.rank))


def name_of(rank: int, name: str) -> str:
    """What a later rank's lane is called on rank 0: its stage's own name, else with its number."""
    return name if name.startswith("stage ") or name == "value" else f"rank {rank} {name}"


@dataclass
class LaterRank:
    """A stage that is not the first."""

    ranks: Ranks
    device: TorchDevice
    stage: Stage
    model: LayeredModel
    table: Any  # its page table

    @property
    def is_last(self) -> bool:
        """Whether it samples."""
        return self.stage.number == self.stage.count - 1

    def serve(self) -> None:
        """Take steps in until there are no more."""
        ranks, before = self.ranks, self.stage.number - 1
        while (come := ranks.receive(before, BATCH, patient=True)).value is not None:
            job, hidden = come.value, come.tensors[0] if come.tensors else None
            with self.device.host("receive", 0, job.label) as receive:
                self.launch(job, hidden, receive)
        if not self.is_last:
            ranks.send(self.stage.number + 1, BATCH)

    def launch(self, job: Job, hidden: Array | None, receive: int) -> None:
        """Queue a step's ops on this rank."""
        device, program = self.device, self.device.recorder.program
        inputs = make_forward_batch(job.flat, device.xp, self.model.pad_to)
        if job.adjustments:
            inputs = replace(inputs, adjustments=job.adjustments)
        stream, send = device.stream(f"stage {self.stage.number}"), device.stream("send")

        def forward() -> Array:
            if len(inputs.table_index):
                self.table[inputs.table_index] = inputs.table_slots
            if job.error:
                raise RuntimeError(job.error)
            layers = self.stage.layers(self.model)
            passed = self.model.forward_layers(layers, inputs, hidden, self.table)
            return self.model.compute_logits(inputs, passed) if self.is_last else passed

        label, own = job.label, job.touches[self.stage.number]
        last = stream.launch(forward, name="forward", label=label, touches=own)
        device.recorder.edge("recv", job.sent_by, last.slice_id)
        device.recorder.edge("launch", receive, last.slice_id)
        if self.is_last:
            last = stream.launch(self.model.sample, last, inputs, name="sample", label=label)
        send.wait(last)
        onward = job.reply if self.is_last else program.new_id()
        gone = send.launch(partial(self.send, job, last, onward), name="send", label=label)
        device.recorder.edge("copy", last.slice_id, gone.slice_id)
        with program.acting("send", gone.slice_id):
            program.say(onward)

    def send(self, job: Job, last: Op, signal: int) -> None:
        """What this stage has made, or why it has not: to the next one, or tokens to rank 0."""
        error = said(last.error)
        made = [] if error else [last.value]
        if self.is_last:
            self.ranks.send(0, TOKENS, error, made, after=signal)
        else:
            job = replace(job, sent_by=last.slice_id, error=error)
            self.ranks.send(self.stage.number + 1, BATCH, job, made, after=signal)
