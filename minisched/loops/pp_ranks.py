"""A pipeline on several processes: each stage a rank, and the scheduler on rank 0 with the first.

The loop is that of ``vllm_pp.py``, unchanged. What it launches on rank 0 is the first stage and, in
the place of the others, messages: the batch, with its hidden states, goes to the next rank when the
first stage has run (``send``); masks and penalties, if there are any, go to the last one when they
are known (``ask``), and the ``copy`` of the tokens is its answer. Every other rank has no
scheduler: it takes in what the rank before it sends, runs its layers on a stream of its own, and
sends on what comes out, the last one tokens. So the batch that a stage runs was decided once, and
nobody can disagree about it. Whatever waits for another rank is on a thread of the host, never on a
stream.

Each rank has the whole model open, and memory for all its KV, although only its own layers are
used. Hidden states travel as they are, so the tokens are those of one process to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from ..core import LogitAdjustment
from ..devices.base import Array, Buffer, Label, Op, RankLost
from ..devices.dist import Ranks, begin, current, gather, needs
from ..devices.thread import TorchDevice
from ..engine.metrics import Metrics
from ..models.base import ForwardBatch, ModelWorkerBatch, make_forward_batch
from ..trace import Touch
from ..trace.recorder import to_text
from ..worker import Step
from ..worker.worker import FORWARD, Recipe, StepOp, Worker
from .run import RunSetup, drive, setup_of, wire
from .vllm_pp import IntermediateTensors, LayeredModel, Stage

BATCH, SAMPLING, TOKENS = "pp batch", "pp sampling", "pp tokens"  # tags of messages
Adjustments = list[LogitAdjustment | None] | None


@dataclass(frozen=True)
class Job:
    """A step as one rank hands it to the next: laid out, with what each stage will touch."""

    flat: ModelWorkerBatch
    label: Label
    touches: dict[int, list[Touch]]  # by stage
    is_asked: bool  # rank 0 will say what sampling needs beside the batch
    error: str = ""  # of a stage before, or of sending it


# -- Rank 0: what stands in for the stages behind the first one ------------------------------------


@dataclass
class FirstRank:
    """What rank 0 launches for a step: its own stage, and messages."""

    ranks: Ranks
    count: int  # of stages

    def begin(self, worker: Worker, step: Step) -> None:
        """Host: a step is laid out; its messages are made of it."""
        step.extra = step

    def recipe(self) -> Recipe:
        """A step's ops."""
        stage = Stage(0, self.count)
        forward = replace(
            FORWARD, run=stage, stream=stage.stream, place=stage.place, touches=stage.touches,
            takes=("inputs",), gives="hidden", awaited_by="send",
        )  # fmt: skip
        send = StepOp(
            "send", self.send, "send", on_thread=True, takes=("extra", "hidden"),
            gives="logits_output", edge=("recv", "hidden"),
        )  # fmt: skip
        ask = StepOp(
            "ask", self.ask, "send", on_thread=True,
            takes=("extra", "logits_output", "adjustments"), gives="next_token_ids",
        )  # fmt: skip
        copy = StepOp(
            "copy", self.take, "copy", on_thread=True,
            takes=("next_token_ids", "buffer", "num_outputs"), gives="copy_done",
        )  # fmt: skip
        return forward, send, ask, copy

    def send(self, worker: Worker, step: Step, stage: IntermediateTensors) -> None:
        """The batch and hidden states, to the next rank.

        All have a page table to fill, so where something can't be sent, at least that is, and the
        last rank answers that the step has failed.
        """
        assert step.flat is not None
        touches = dict[int, list[Touch]]()
        for number in range(1, self.count):
            later = Stage(number, self.count)
            touches[number] = [
                touch._replace(cells=to_text(touch.cells))
                for touch in later.touches(worker, step)
                if touch.resource.startswith(later.place)
            ]
        is_asked = step.batch.has_sampling_extras
        job = Job(step.flat, step.label, touches, is_asked, said(stage.error))
        try:
            self.ranks.send(1, BATCH, job, [] if job.error else [stage.hidden])
        except RankLost:
            raise
        except Exception as error:
            self.ranks.send(1, BATCH, replace(job, error=said(error)))

    def ask(self, worker: Worker, step: Step, sent: None, adjustments: Adjustments) -> None:
        """What sampling needs beside the batch, to the last rank; or that it can't be sent."""
        if not step.batch.has_sampling_extras:
            return
        try:
            self.ranks.send(self.count - 1, SAMPLING, adjustments)
        except RankLost:
            raise
        except Exception as error:
            self.ranks.send(self.count - 1, SAMPLING, said(error))

    def take(self, worker: Worker, asked: None, buffer: int, size: int) -> Array:
        """Wait for the tokens, or raise what went wrong elsewhere."""
        come = self.ranks.receive(self.count - 1, TOKENS, patient=True)
        recorder = worker.device.recorder
        error, sampled_by = come.value
        if error:
            raise RuntimeError(error)
        recorder.program.touch("read", "value", [sampled_by])
        recorder.program.touch("write", f"host output {buffer}", range(size))
        recorder.edge("recv", come.sent_by, recorder.program.op)
        return worker.host_outputs[buffer][:size].copy_(come.tensors[0])


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
            serve(ranks, device, stage, cast(LayeredModel, setup.model), table)
        gather(ranks, device, partial(name_of, ranks.rank))


def name_of(rank: int, name: str) -> str:
    """What a later rank's lane is called on rank 0: its stage's own name, else with its number."""
    return name if name.startswith("stage ") or name == "value" else f"rank {rank} {name}"


def serve(
    ranks: Ranks, device: TorchDevice, stage: Stage, model: LayeredModel, table: Buffer
) -> None:
    """Take steps in and launch them, until there are no more."""
    stream, send = device.stream(stage.stream), device.thread("send")
    edge = device.recorder.edge
    gone: Op | None = None
    while (come := ranks.receive(stage.number - 1, BATCH, patient=True)).value is not None:
        job: Job = come.value
        error = RuntimeError(job.error) if job.error else None
        with device.host("receive", 0, job.label) as receive:
            inputs = make_forward_batch(job.flat, device.xp, model.pad_to)
            hidden = come.tensors[0] if come.tensors else None
            last: Op = stream.launch(
                stage.run, model, table, IntermediateTensors(inputs, hidden, error),
                name="forward", label=job.label, touches=job.touches[stage.number],
            )  # fmt: skip
            edge("recv", come.sent_by, last.slice_id)
            edge("launch", receive, last.slice_id)
        if stage.is_last:
            asked = ranks.receive(0, SAMPLING, patient=True).value if job.is_asked else None
            last = stream.launch(sample, model, last, inputs, asked, name="sample", label=job.label)
        send.wait(last)
        gone = send.launch(partial(pass_on, ranks, stage, job, last), name="send", label=job.label)
        edge("copy", last.slice_id, gone.slice_id)
    if gone is not None:
        gone.synchronize()
    if not stage.is_last:
        ranks.send(stage.number + 1, BATCH)


def sample(model: LayeredModel, logits: Array, inputs: ForwardBatch, asked: Any) -> Array:
    """The last stage: tokens [num_samples], with marks; ``asked`` may be why it can't be done."""
    if isinstance(asked, str):
        raise RuntimeError(asked)
    return model.sample(logits, replace(inputs, adjustments=asked) if asked else inputs)


def pass_on(ranks: Ranks, stage: Stage, job: Job, last: Op) -> None:
    """What a stage has made, or why it has not: to the next one, or tokens to rank 0."""
    made, error = last.value, last.error
    if stage.is_last:
        answer = said(error), last.slice_id
        ranks.send(0, TOKENS, answer, [made] if error is None else [])
        return
    error = error or made.error
    job = replace(job, error=said(error))
    ranks.send(stage.number + 1, BATCH, job, [made.hidden] if error is None else [])
