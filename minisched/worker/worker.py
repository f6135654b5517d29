"""The worker: it launches a step's ops and returns before the device has run them.

A step is a batch on its way. What it does on the device is a list of ops, its *recipe*: a plain
step is ``FORWARD`` (find the input tokens, fill the page table, compute logits), ``SAMPLE``
(choose tokens, keep them in the relay and in an output buffer) and ``COPY`` (bring that buffer to
the host, on a stream of its own). An op takes fields of its ``Step`` and gives one, so the data
flow of a step is what its ops name. ``Worker.prepare`` lays a step out, ``Worker.launch`` queues
its ops, all of them or up to one, and ``Step.result`` blocks until the copy has run.

Other recipes have more ops, or others: ``verify.py``, ``loops/mini.py`` and ``loops/vllm_pp.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..core import LogitAdjustment, Result, ScheduleBatch
from ..devices.base import Array, Device, Label, Op, OrNone, memory_for, reason_of
from ..devices.cost import NO_COST, CostModel
from ..models.base import (
    ForwardBatch,
    Model,
    ModelWorkerBatch,
    get_model_worker_batch,
    make_forward_batch,
    read_marks,
    without_marks,
)
from ..relay.base import Prompts, Relay
from ..trace import Touch
from .recording import NOTHING, StepEdges, StepTouches, TokenEdges, Touches
from .sampling_info import make_adjustments

# -- A step: all that is kept of a batch between its commit and its result -------------------------


@dataclass(eq=False, repr=False)
class Step:
    """A batch on its way (SGLang ``managers/utils.py:GenerationBatchResult``).

    The nine published fields come first: handles on what its ops give, no value among them. A step
    whose sampling is delayed has neither tokens nor a copy yet.
    """

    batch: ScheduleBatch
    logits_output: Op | None = None  # logits [num_logits, vocab]
    next_token_ids: Op | None = None  # tokens [num_samples]
    num_accepted_tokens: Op | None = None  # of each row that count, [num_reqs]; None: no drafts
    next_draft_input: Op | None = None  # [num_reqs * k]; None: the host drafts, or nobody
    extend_input_len_per_req: Sequence[int] = ()  # [num_extend_reqs], if logprobs are wanted
    extend_logprob_start_len_per_req: Sequence[int] = ()  # where in each prompt's part they begin
    copy_done: Op | None = None  # the copy to the host, as an event and a handle
    delay_sample_func: Callable[[], None] | None = None  # launches the rest, once (#20697)
    future_indices: Array = None  # where the relay keeps each row's token, on the device

    flat: ModelWorkerBatch | None = None  # laid out on the host; None: no relay has bound it yet
    inputs: ForwardBatch = field(init=False)  # the same on the device, once it is shipped
    previous: OrNone | None = None  # the tokens that it is built upon, where the relay takes an op
    adjustments: list[LogitAdjustment | None] | None = None  # masks, penalties; None: not built
    buffer: int = 0  # which pair of output buffers is its own
    num_outputs: int = 0  # integers that it leaves there
    prompts: Prompts | None = None  # what the relay copies to the device for it, until it does
    upload: Op | None = None  # that copy
    hidden: Any = None  # what one stage of a pipeline hands to the next
    extra: Any = None  # what its recipe's ``begin`` keeps of it for the ops
    found_logprobs: Op | None = None
    logprobs: Op | None = None  # their copy (SGLang: part of logits_output)
    touches: StepTouches = NOTHING  # what its ops will touch, as declared when it was laid out
    edges: StepEdges | None = None  # whose tokens it takes; None: nothing is recorded
    rest: deque[StepOp] = field(default_factory=deque)  # ops that are yet to be launched
    launched: list[Op] = field(default_factory=list)
    error: Exception | None = None  # of its preparation: it is lost when it is to be launched
    on_read: Callable[[int, int, int, bool], None] | None = None  # records that the copy is read
    readers: tuple[Callable[[Step, Result], Result], ...] = ()  # of its ops; see StepOp.read
    _result: Result | None = None  # once somebody has waited for it

    def __post_init__(self) -> None:
        self.label = Label(self.batch.step, self.batch.mode.value, self.batch.rids)

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
            if self.on_read is not None:
                uploaded = self.upload is not None
                self.on_read(self.batch.step, self.buffer, self.num_outputs, uploaded)
            tokens, nan_samples = read_marks(values.tolist())
            result = Result(tokens, nan_samples=nan_samples)
            for read in self.readers:
                result = read(self, result)
        except Exception as error:
            return self.fail(error)
        self._result = result
        return result

    def fail(self, error: Exception) -> Result:
        """The step has no tokens; what of it is launched ends before anybody hears of that."""
        self._result = Result((), f"step {self.batch.step} failed: {reason_of(error)}")
        for op in self.launched:
            try:
                op.synchronize()
            except Exception as kept:
                kept.__traceback__ = None  # it names frames, and one of these this step
        return self._result


@dataclass(frozen=True)
class StepOp:
    """One op of a step: a function for the device, and what of the step it takes and gives.

    ``run`` is called as ``run(worker, *taken)``. ``takes`` and ``gives`` are fields of ``Step``: of
    an op that is taken the function gets the value. The stream named by ``awaited_by`` waits for
    it. ``edge`` is an arrow in the trace: its kind, and the field that it comes from.
    """

    name: str
    run: Callable[..., Any]
    stream: str = "forward"
    takes: tuple[str, ...] = ()
    gives: str = ""
    awaited_by: str = ""
    edge: tuple[str, str] = ("", "")
    cost: Callable[[Worker, Step], int] = lambda worker, step: 0  # nanoseconds on ``sim``
    touches: Callable[[Worker, Step], Sequence[Touch]] = lambda worker, step: ()
    place: str = ""  # of a pipeline's stage: what the names of its own memory begin with
    mode: str = ""  # that its slice shows, if it is not the step's
    read: Callable[[Step, Result], Result] | None = None  # host: what it adds to the result


Recipe = tuple[StepOp, ...]

# -- The plain recipe: what its three ops do, on the device ----------------------------------------


def forward(
    worker: Worker, inputs: ForwardBatch, edges: StepEdges | None, previous: Array | None
) -> Array:
    """Logits [num_logits, vocab]."""
    # The table comes first: should the rest fail, the step behind this one still relies on it.
    if len(inputs.table_index):
        worker.page_table[inputs.table_index] = inputs.table_slots
    ids = worker.relay.resolve_future(inputs.ids, previous)
    if edges is not None:
        worker.token_edges.took(edges, ids)
    return worker.model.forward(inputs, ids, worker.page_table)


def sample(
    worker: Worker,
    logits: Array,
    inputs: ForwardBatch,
    adjustments: list[LogitAdjustment | None] | None,
    buffer: int,
    dests: Array | None = None,  # None: there are drafts, and nobody knows yet which tokens count
) -> Array:
    """Tokens [num_samples], also left in the relay; and, with marks, in the output buffer."""
    xp, wanted = worker.device.xp, inputs.logprobs
    if adjustments:
        inputs = replace(inputs, adjustments=adjustments)
    if wanted is not None and wanted.samples_at is not None:  # the prompt's logits are there too
        logits = logits[wanted.samples_at]
    marked = worker.model.sample(logits, inputs)
    tokens = without_marks(xp, marked)
    if dests is not None:
        worker.relay.store_to_map(dests, tokens)
    worker.outputs[buffer][: len(inputs.sampling)] = marked
    return tokens


def copy(worker: Worker, buffer: int, size: int) -> Array:
    """The first ``size`` integers of the output buffer, on the host."""
    return worker.device.copy_to_host(worker.host_outputs[buffer], worker.outputs[buffer], size)


FORWARD = StepOp(
    "forward",
    forward,
    takes=("inputs", "edges", "previous"),
    gives="logits_output",
    cost=lambda worker, step: worker.cost.forward_rows(step.inputs.extents),
    touches=lambda worker, step: step.touches.forward,
)
SAMPLE = StepOp(
    "sample",
    sample,
    takes=("logits_output", "inputs", "adjustments", "buffer", "future_indices"),
    gives="next_token_ids",
    awaited_by="copy",
    cost=lambda worker, step: worker.cost.sample_rows(len(step.batch.reqs)),
    touches=lambda worker, step: [
        *step.touches.sample,
        Touch("write", f"output {step.buffer}", range(len(step.inputs.sampling))),
    ],
)
COPY = StepOp(
    "copy",
    copy,
    "copy",
    takes=("buffer", "num_outputs"),
    gives="copy_done",
    edge=("copy", "next_token_ids"),
    cost=lambda worker, step: worker.cost.copy,
    touches=lambda worker, step: [
        Touch("read", f"output {step.buffer}", range(step.num_outputs)),
        Touch("write", f"host output {step.buffer}", range(step.num_outputs)),
    ],
)
PLAIN: Recipe = (FORWARD, SAMPLE, COPY)


# -- The worker ------------------------------------------------------------------------------------


class Worker:
    """Runs batches on one device with one model and one relay (SGLang ``managers/tp_worker.py``).

    A step is the ops of ``recipe``, and those of ``logprobs`` if somebody wants any. Output buffers
    are a ring of ``depth`` pairs: with so many steps in flight none overwrites what the host has
    yet to read. ``pins`` is how many batches stay named at least. With drafts (``verify.py``) a row
    has several outputs, and ``begin`` says where a step is laid out.
    """

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
        recipe: Recipe = PLAIN,
        logprobs: Recipe = (),
        pins: int = 0,
        late_penalties: bool = False,
        outputs_per_row: int = 1,
        make_touches: Callable[..., Touches] = Touches,
        begin: Callable[[Worker, Step], None] | None = None,
    ) -> None:
        self.device, self.model, self.relay = device, model, relay
        self.cost: CostModel = cost
        self.max_len, self.page_size, self.depth = max_len, page_size, depth
        self.recipe, self.logprobs, self.begin = recipe, logprobs, begin
        self.late_penalties = late_penalties
        model.allocate(device, num_slots, max_len)
        places = tuple(dict.fromkeys(op.place for op in recipe if op.name == "forward"))
        size = (max_running_requests + 1) * max_len
        self.page_tables = {place: device.memory(f"{place}page table", size) for place in places}
        self.page_table = self.page_tables[places[0]]
        device.recorder.mark("row length", **{"page table": max_len, "token pool": max_len})
        size = max_running_requests * outputs_per_row
        with memory_for(f"the outputs of {depth} steps in flight", device.name):
            self.outputs = [device.memory(f"output {i}", size) for i in range(depth)]
            self.host_outputs = [device.host_memory(f"host output {i}", size) for i in range(depth)]
        device.recorder.mark("host buffers", count=len(self.outputs), size=size)
        self.batch_record_buf = deque[ForwardBatch](maxlen=max(pins, depth) if pins else 0)
        self.lanes = {op.stream: device.stream(op.stream) for op in recipe}
        program = device.recorder.program
        self.touches = make_touches(program, relay, max_len, page_size, places)
        self.token_edges = TokenEdges(device, relay)

    def prepare(self, step: Step, previous: Step | None = None) -> None:
        """Host: lay a step out and ship it; ``previous`` is whose tokens it may be built upon."""
        self.lay_out(step, previous)
        self.ship(step)

    def lay_out(self, step: Step, previous: Step | None = None) -> None:
        """Host: number the unknown tokens, lay the batch out flat, say what its ops will touch."""
        batch = step.batch
        step.buffer, step.num_outputs = batch.step % len(self.outputs), len(batch.reqs)
        step.rest.extend(self.recipe)
        if self.begin is not None:
            self.begin(self, step)
        ids, dests = self.relay.bind(batch, previous.batch if previous else None)
        flat = get_model_worker_batch(batch, ids, dests, self.max_len, self.page_size)
        step.flat, step.touches = flat, self.touches.declare(batch, flat)
        if self.touches.program.is_on:
            step.on_read = self.touches.read_back
        tokens = previous.next_token_ids if previous and self.relay.is_chained else None
        step.edges = self.token_edges.lay_out(batch, flat, tokens)
        # Should that step fail, this one runs all the same: it may have rows of others.
        step.previous = OrNone(tokens) if tokens else None

    def ship(self, step: Step) -> None:
        """Host: bring what was laid out to the device, and what the relay lacks of it."""
        assert step.flat is not None
        step.inputs = make_forward_batch(step.flat, self.device.xp, self.model.pad_to)
        step.future_indices, batch = step.inputs.dests, step.batch
        if step.inputs.logprobs is not None:
            step.extend_input_len_per_req = [*map(len, batch.ids[: batch.num_extend_reqs])]
            step.extend_logprob_start_len_per_req = batch.extend_logprob_start_lens
            step.rest.extend(self.logprobs)
        if step.rest[0].gives == "upload":
            copies = step.rest.popleft()
            if prompts := self.relay.upload(batch):
                step.prompts = prompts
                self.queue(step, copies)
                step.prompts = None  # from now on the op names them
        if self.batch_record_buf.maxlen:
            self.record_batch_in_overlap(replace(step.inputs))

    def record_batch_in_overlap(self, inputs: ForwardBatch) -> None:
        """Keep a batch's tensors alive as long as the device may still read them (SGLang's name).

        A tensor made for one stream and read on another one belongs to the first: as soon as nobody
        on the host names it, its memory is handed out again (SGLang #18744, #2070). So the newest
        batches stay named; what falls out has ended, since the host has its result.
        """
        self.touches.follow(inputs)
        self.batch_record_buf.append(inputs)

    def launch(self, step: Step, upto: str = "", launched_by: int = 0) -> None:
        """Host: queue a step's ops, up to the one that gives ``upto``; a later call goes on there.

        Returns at once. ``launched_by`` is the id of the host's slice.
        """
        edge, has_extras = self.device.recorder.edge, step.batch.has_sampling_extras
        step.delay_sample_func = None
        while step.rest:
            op = step.rest.popleft()
            if op.gives == "next_token_ids" and has_extras and step.adjustments is None:
                self.update_vocab_mask(step)
            kind, source = op.edge
            before = getattr(step, source) if kind else None
            done = self.queue(step, op)
            if launched_by:
                edge("launch", launched_by, done.slice_id)
                launched_by = 0
            if op.gives == "logits_output" and step.edges is not None:
                self.token_edges.launched(step.edges, done)
            if before is not None:
                edge(kind, before.slice_id, done.slice_id)
            if op.gives == upto:
                break
        self.device.flush(*step.launched)
        if step.rest:
            step.delay_sample_func = partial(self.launch, step)
        elif step.edges is not None and (tokens := step.next_token_ids) and step.copy_done:
            stored = step.num_accepted_tokens or tokens
            self.token_edges.sampled(step.edges, tokens, stored, step.copy_done)

    def queue(self, step: Step, op: StepOp) -> Op:
        """Host: launch one op, and let the stream that needs it wait for it."""
        label = replace(step.label, mode=op.mode) if op.mode else step.label
        done = self.lanes[op.stream].launch(
            op.run, self, *[getattr(step, name) for name in op.takes],
            name=op.name, cost=op.cost(self, step), label=label,
            touches=op.touches(self, step) if self.touches.program.is_on else (),
        )  # fmt: skip
        if op.awaited_by:
            self.lanes[op.awaited_by].wait(done)
        if op.read is not None:
            step.readers += (op.read,)
        step.launched.append(done)
        setattr(step, op.gives, done)
        return done

    def update_vocab_mask(self, step: Step, newest: Mapping[str, int] | None = None) -> None:
        """Host: build its masks and penalties from what is known now, and of ``newest`` by rid."""
        recorder, late = self.device.recorder, self.late_penalties
        step.adjustments = make_adjustments(step.batch, recorder, late, newest or {})
