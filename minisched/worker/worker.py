"""The worker: it launches a step's ops and returns before the device has run them.

All that is kept of a batch between its commit and its result is in one ``Step``: what was laid out
of it, handles on what its ops give, what it waits for. What it does on the device is a list of
``StepOp``, its recipe. A plain step has three: ``forward`` (find the input tokens, fill the page
table, compute logits), ``sample`` (choose tokens, keep them in the relay and in an output buffer)
and ``copy`` (bring that buffer to the host, on a stream of its own).

``Worker.prepare`` lays a step out, ``Worker.launch`` queues its ops, all of them or up to one, and
``Step.result`` blocks until the copy has run. What log-probabilities and uploads add is in
``recipes.py``, drafts in ``verify.py``, stages in ``pipeline.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ..core import LogitAdjustment, ModelWorkerBatch, Result, ScheduleBatch, get_model_worker_batch
from ..devices.base import Array, Buffer, Device, Label, Op, OrNone
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
from ..relay.base import Prompts
from ..speculative.base import Drafter
from ..trace import Touch
from .failure import memory_for, reason_of
from .logprobs import read_logprobs, sampled_logits
from .recording import NOTHING, StepEdges, StepTouches, TokenEdges, Touches
from .sampling_info import make_adjustments, mark_masks


@dataclass(eq=False, repr=False)
class Step:
    """A batch on its way (SGLang ``managers/utils.py:GenerationBatchResult``).

    ``batch`` is the step as it was committed; SGLang puts the pair of both into its
    ``result_queue``. The nine published fields come next; each op gives one and takes others
    (``StepOp.gives``, ``takes``). A step whose sampling is delayed has neither tokens nor a copy
    before ``delay_sample_func`` was called.
    """

    batch: ScheduleBatch
    logits_output: Op | None = None  # [num_logits, vocab]; of a lost step what stands in for it
    next_token_ids: Op | None = None  # [num_samples]; ``sample`` leaves them in the relay, too
    num_accepted_tokens: Op | None = None
    """With drafts: how many of each row's tokens count, [num_reqs] (SGLang: accept_lens, with their
    sum under this name). The scheduler takes the rest back."""
    next_draft_input: Op | None = None  # drafts for the step behind this one, [num_reqs * k]
    extend_input_len_per_req: Sequence[int] = ()
    """Positions that each prompt computes here, [num_extend_reqs], where somebody wants
    log-probabilities: the live requests have moved on when the result is there."""
    extend_logprob_start_len_per_req: Sequence[int] = ()  # where in each part they begin
    copy_done: Op | None = None  # the copy to the host: an event, and a handle on what it brings
    delay_sample_func: Callable[[], None] | None = None
    """Launches the rest of a step whose sampling is delayed, and None again then (#20697): called
    when the result before has been processed (``launch_batch_sample_if_needed``)."""
    future_indices: Array = None  # where the relay keeps each row's newest token, [num_reqs]

    flat: ModelWorkerBatch | None = None  # laid out on the host; None: no relay has bound it yet
    inputs: ForwardBatch = field(init=False)  # the same on the device, once it is shipped
    output: Output = field(init=False)  # its pair of buffers
    num_outputs: int = 0  # integers that it leaves there
    adjustments: list[LogitAdjustment | None] | None = None
    """Masks and penalties, [num_samples] or empty; None: nobody has built them yet."""
    previous: OrNone | None = None  # the tokens that it is built upon, where the relay takes an op
    prompts: Prompts | None = None  # what the relay copies for it, until that is queued
    upload: Op | None = None  # that copy
    hidden: Any = None  # what one stage of a pipeline hands to the next (pipeline.py)
    drafts: Any = None  # where its rows begin, and what its drafter is told (verify.py)
    found_logprobs: Op | None = None
    logprobs: Op | None = None  # their copy (SGLang: part of logits_output)
    touches: StepTouches = NOTHING  # what its ops will touch, as declared when it was laid out
    edges: StepEdges | None = None  # whose tokens it takes; None: nothing is recorded
    rest: deque[StepOp] = field(default_factory=deque)  # ops that are yet to be launched
    launched: list[Op] = field(default_factory=list)
    error: Exception | None = None  # of its preparation: it is lost when it is to be launched
    on_read: Callable[[], None] | None = None  # says in the trace that the host has read the copy
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
                self.on_read()
            result = self._read(values.tolist())
            if self.logprobs is not None:
                places = self.logprobs.synchronize().tolist()
                lens = self.extend_input_len_per_req, self.extend_logprob_start_len_per_req
                found = read_logprobs(self.batch, *lens, result.tokens, places)
                result = replace(result, logprobs=found)
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
        for op in self.launched:
            try:
                op.synchronize()
            except Exception as kept:
                kept.__traceback__ = None  # it names frames, and one of these this step
        return self._result

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


def no_time(worker: Any, step: Step) -> int:
    """What an op costs that costs nothing."""
    return 0


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
    cost: Callable[[Any, Step], int] = no_time  # nanoseconds on ``sim``
    touches: Callable[[Any, Step], Sequence[Touch]] = lambda worker, step: ()
    needs: str = ""  # a field of ``ForwardBatch``: a step in which that is None has no such op
    place: str = ""  # of a pipeline's stage: what the names of its own memory begin with
    mode: str = ""  # that its slice shows, if it is not the step's


Recipe = tuple[StepOp, ...]

# -- A plain step, on the device -------------------------------------------------------------------


def forward(
    worker: Worker, inputs: ForwardBatch, edges: StepEdges | None, previous: Array | None
) -> Array:
    """Logits [num_logits, vocab]."""
    # The table comes first: should the rest fail, the step behind this one still relies on it.
    if len(inputs.table_index):
        worker.page_table[inputs.table_index] = inputs.table_slots
    ids = worker.relay.resolve(inputs.ids, previous)
    if edges is not None:
        worker.token_edges.took(edges, ids)
    return worker.model.forward(inputs, ids, worker.page_table)


def sample(
    worker: Worker,
    logits: Array,
    inputs: ForwardBatch,
    adjustments: list[LogitAdjustment | None],
    dests: Array,
    output: Output,
) -> Array:
    """Tokens [num_reqs], also left in the relay and, marked, in the output buffer."""
    xp = worker.device.xp
    if adjustments:
        inputs = replace(inputs, adjustments=adjustments)
    if inputs.logprobs is not None:
        logits = sampled_logits(xp, inputs.logprobs, logits)
    marked = worker.model.sample(logits, inputs)
    tokens = without_marks(xp, marked)
    worker.relay.store(dests, tokens)
    output.on_device[: len(inputs.rows)] = marked
    return tokens


def copy(worker: Worker, output: Output, size: int) -> Array:
    """The first ``size`` integers of the output buffer, on the host."""
    return worker.device.copy_to_host(output.on_host, output.on_device, size)


FORWARD = StepOp(
    "forward",
    forward,
    takes=("inputs", "edges", "previous"),
    gives="logits_output",
    edge=("upload", "upload"),
    cost=lambda worker, step: worker.cost.forward_rows(step.inputs.extents),
    touches=lambda worker, step: step.touches.forward,
)
SAMPLE = StepOp(
    "sample",
    sample,
    takes=("logits_output", "inputs", "adjustments", "future_indices", "output"),
    gives="next_token_ids",
    awaited_by="copy",
    cost=lambda worker, step: worker.cost.sample_rows(len(step.batch.reqs)),
    touches=lambda worker, step: [*step.touches.sample, step.output.left(0, step.num_outputs)],
)
COPY = StepOp(
    "copy",
    copy,
    "copy",
    takes=("output", "num_outputs"),
    gives="copy_done",
    edge=("copy", "next_token_ids"),
    cost=lambda worker, step: worker.cost.copy,
    touches=lambda worker, step: step.output.copied(step.num_outputs),
)


# -- Where it leaves what the host shall read ------------------------------------------------------


class Output(NamedTuple):
    """One pair of buffers: where a step leaves what the host shall read, and where it reads it."""

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
        self.buffers: list[Output] = []
        with memory_for(f"the outputs of {depth} steps in flight", device.name):
            for i in range(depth):
                on_device = device.memory(f"output {i}", size)
                on_host = device.host_memory(f"host output {i}", size)
                self.buffers.append(Output(i, on_device, on_host))
        device.recorder.mark("host buffers", count=len(self), size=size)

    def __len__(self) -> int:
        return len(self.buffers)

    def of(self, step: int) -> Output:
        """Where a step leaves its output."""
        return self.buffers[step % len(self)]


# -- The worker ------------------------------------------------------------------------------------


def as_committed(worker: Worker, step: Step) -> ScheduleBatch:
    """What is laid out of a plain step: its batch as it is."""
    return step.batch


def fill_table(worker: Worker, flat: ModelWorkerBatch, *, place: str, resolves: bool) -> Array:
    """Of a lost step, what its forward pass begins with; nobody uses what the relay gives."""
    table, asarray = worker.page_tables[place], worker.device.xp.asarray
    if flat.table_index:
        table[asarray(flat.table_index)] = asarray(flat.table_slots)
    if resolves:
        worker.relay.resolve(asarray(flat.input_ids), None)
    return table[:1]


class Worker:
    """Runs batches on one device with one model and one relay (SGLang ``managers/tp_worker.py``).

    ``recipe`` says which ops a step is. Output buffers come from a ring, one for each of the
    ``depth`` steps that can be in flight: step N's must not be overwritten before the host has read
    it. ``pins`` is how many batches stay named at least (0: none; ``record_batch_in_overlap``).
    Where steps carry drafts, ``begin`` says at which positions and with which tokens one is laid
    out (``verify.py``).
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
        recipe: Recipe = (FORWARD, SAMPLE, COPY),
        pins: int = 0,
        late_penalties: bool = False,
        cuda_graph_max_bs: int | None = None,
        num_draft_tokens: int = 0,
        drafter: Drafter | None = None,
        begin: Callable[[Worker, Step], ScheduleBatch] = as_committed,
    ) -> None:
        self.device = device
        self.model = model
        self.relay = relay
        self.max_len, self.page_size, self.depth = max_len, page_size, depth
        self.cost: CostModel = cost
        self.begin, self.late_penalties = begin, late_penalties
        self.gives_every_input = isinstance(relay, UploadRelay)  # also what the host knows
        self.recipe, rows = recipe, max_running_requests
        model.allocate(device, num_slots, max_len)
        places = tuple(dict.fromkeys(op.place for op in recipe if op.name == "forward"))
        size = (rows + 1) * max_len
        self.page_tables = {place: device.memory(f"{place}page table", size) for place in places}
        if isinstance(model, GraphModel):
            max_bs = rows if cuda_graph_max_bs is None else min(rows, cuda_graph_max_bs)
            self.page_tables[""] = model.init_cuda_graphs(device, self.page_tables[""], max_bs)
        self.page_table = self.page_tables[places[0]]
        device.recorder.mark("row length", **{"page table": max_len, "token pool": max_len})
        each = 2 + 2 * num_draft_tokens if num_draft_tokens else 1  # integers of a row
        self.outputs = OutputRing(device, rows * each, depth)
        self.batch_record_buf = deque[ForwardBatch](maxlen=max(pins, depth) if pins else 0)
        for op in recipe:
            device.stream(op.stream)
        self.touches: Touches = Touches(
            device.recorder.program, relay, max_len, page_size, places, num_draft_tokens, drafter
        )
        self.token_edges = TokenEdges(device)
        if drafter is not None:
            drafter.allocate(device, num_slots, rows, max_len)

    def prepare(self, step: Step, previous: Step | None = None) -> None:
        """Host: lay a step out and ship it; ``previous`` is whose tokens it may be built upon."""
        self.lay_out(step, previous)
        self.ship(step)

    def lay_out(self, step: Step, previous: Step | None = None) -> None:
        """Host: number the unknown tokens, lay the batch out flat, say what its ops will touch."""
        step.output, step.num_outputs = self.outputs.of(step.batch.step), len(step.batch.reqs)
        step.rest.extend(self.recipe)
        batch = self.begin(self, step)
        ids, dests = self.relay.bind(batch, previous.batch if previous else None)
        flat = get_model_worker_batch(batch, ids, dests, self.max_len, self.page_size)
        step.flat, step.touches = flat, self.touches.declare(batch, flat)
        tokens = previous.next_token_ids if previous and self.relay.is_chained else None
        step.edges = self.token_edges.lay_out(self.relay, step.batch, batch, flat, tokens)
        # Should the step before fail, this one runs all the same: of those whose tokens are missing
        # nobody is left, and it may have others.
        step.previous = OrNone(tokens) if tokens else None

    def ship(self, step: Step) -> None:
        """Host: bring what was laid out to the device, and what the relay lacks of it."""
        assert step.flat is not None
        step.inputs = make_forward_batch(step.flat, self.device.xp, self.model.pad_to)
        step.future_indices, batch = step.inputs.dests, step.batch
        if step.inputs.logprobs is not None:
            step.extend_input_len_per_req = [*map(len, batch.ids[: batch.num_extend_reqs])]
            step.extend_logprob_start_len_per_req = batch.extend_logprob_start_lens
        if step.rest[0].gives == "upload":
            copies = step.rest.popleft()
            if isinstance(self.relay, UploadRelay) and (prompts := self.relay.upload(batch)):
                step.prompts = prompts
                self.queue(step, copies)
                step.prompts = None  # from now on the op names them
        if self.batch_record_buf.maxlen:
            self.record_batch_in_overlap(replace(step.inputs))

    def record_batch_in_overlap(self, inputs: ForwardBatch) -> None:
        """Keep a batch's tensors alive as long as the device may still read them.

        (SGLang ``managers/scheduler.py:record_batch_in_overlap``.) A tensor made for one stream and
        read on another one belongs to the first: as soon as nobody on the host names it, its memory
        is handed out again, and the other stream reads what somebody else has written there
        (#18744, #2070). So the newest batches stay named, and what falls out is as many steps older
        as there are slots: with two, as in the original, it has ended if the host has seen its
        result by then, which holds with two steps in flight. With ``depth`` in flight there are
        ``depth`` slots. Here a step, and on ``cuda`` an op (``devices/cuda.py:CudaOp``), names what
        it was given by itself, too: the record is how SGLang does it, and a second safety.
        """
        self.touches.follow(inputs)
        self.batch_record_buf.append(inputs)

    def update_vocab_mask(
        self, step: Step, newest: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Host: build what a step may sample, from what is known now (``make_adjustments``).

        (SGLang ``sampling/sampling_batch_info.py:update_regex_vocab_mask``.) Where nobody has asked
        for it before, it is built when the sampling is launched.
        """
        step.adjustments = made = make_adjustments(step.batch, self.late_penalties, newest)
        if made and self.device.recorder.is_on:
            mark_masks(self.device.recorder, step.batch, made)

    def launch(self, step: Step, upto: str = "", launched_by: int = 0) -> None:
        """Host: queue a step's ops, up to the one that gives ``upto``; a later call goes on there.

        Returns at once. ``launched_by`` is the id of the host's slice.
        """
        edge, step.delay_sample_func = self.device.recorder.edge, None
        while step.rest:
            op = step.rest.popleft()
            if op.gives == "next_token_ids" and step.adjustments is None:
                if step.batch.has_sampling_extras:
                    self.update_vocab_mask(step)
                else:
                    step.adjustments = []
            if not op.needs or getattr(step.inputs, op.needs) is not None:
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
        else:
            self._trace(step)

    def queue(self, step: Step, op: StepOp) -> Op:
        """Host: launch one op, and let the stream that needs it wait for it."""
        label = replace(step.label, mode=op.mode) if op.mode else step.label
        done = self.device.stream(op.stream).launch(
            op.run, self, *[getattr(step, name) for name in op.takes],
            name=op.name, cost=op.cost(self, step), label=label,
            touches=op.touches(self, step) if self.touches.program.is_on else (),
        )  # fmt: skip
        if op.awaited_by:
            self.device.stream(op.awaited_by).wait(done)
        step.launched.append(done)
        setattr(step, op.gives, done)
        return done

    def launch_or_lose(self, step: Step, upto: str = "") -> Step:
        """The same on a thread of the host: whatever goes wrong there, the step has failed."""
        try:
            if step.error is not None:
                raise step.error
            if not step.has_failed:
                self.launch(step, upto)
        except Exception as error:
            self.lose(step, error)
        return step

    def lose(self, step: Step, error: Exception) -> None:
        """Host: the step has failed before all of it was launched; those behind it go on.

        Its requests may be in a step behind it already, which then reads and writes through cells
        of the page table that this one was to fill: with what stood there before, it would write
        into pages that are somebody else's by now. So small ops fill them in the place of its
        forward pass, and let a relay that counts steps take its turn, unless that pass has.
        """
        if step.launched:
            step.fail(error)
        batch, declared = step.batch, step.touches
        is_bound = step.flat is not None and step.logits_output is None and step.hidden is None
        if step.flat is None:  # the relay has not bound it: only its cells of the table are right
            ids = [0] * sum(map(len, batch.ids))
            dests = ids[: len(batch.reqs)]
            step.flat = get_model_worker_batch(batch, ids, dests, self.max_len, self.page_size)
            declared = self.touches.undeclared(batch, step.flat)
        step.touches = StepTouches(self.touches.written(declared))
        step.edges = step.next_token_ids = step.copy_done = step.delay_sample_func = None
        step.rest.clear()
        for op in self.recipe:
            if op.name == "forward":
                fill = partial(fill_table, place=op.place, resolves=is_bound)
                free = replace(op, name="page table", run=fill, takes=("flat",), cost=no_time)
                self.queue(step, free)
        self.device.flush(*step.launched)
        step.fail(error)
        step.error = None  # it names frames, and one of these this step

    def _trace(self, step: Step) -> None:
        """A step is launched: whose its tokens are, and what to say when the host has read them."""
        tokens, copy = step.next_token_ids, step.copy_done
        if step.edges is not None and tokens is not None and copy is not None:
            stored = step.num_accepted_tokens or tokens
            self.token_edges.sampled(step.edges, tokens, stored, copy)
        if self.touches.program.is_on and step.num_outputs:
            step.on_read = partial(
                self.touches.read_back, step.batch.step, step.output.number, step.num_outputs,
                step.upload is not None,
            )  # fmt: skip
