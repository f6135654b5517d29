"""The worker: it launches a step's ops and returns before the device has run them.

A step is a batch on its way. ``lay_out`` and ``ship`` bring it to the device. ``launch`` queues its
ops, and the host goes on immediately. A plain step has three ops::

    forward   on the stream "forward"   read unknown tokens from the relay, compute logits
    sample    on the same stream        choose tokens, leave them in the relay and a buffer
    copy      on the stream "copy"      bring the buffer to the host

Each op is a pair of methods: ``launch_forward`` runs on the host and queues ``forward``, which runs
on the device. ``Step.result`` blocks the host until the copy has run. A step with other ops is a
subclass of ``Step`` and of ``Worker``, next to the design that needs it (``loops/vllm_pp.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from ..core import Result, ScheduleBatch
from ..core.feature import StepPart
from ..devices.base import Array, Device, Label, Op, OrNone, Stream, memory_for, reason_of
from ..devices.cost import NO_COST, CostModel
from ..models.base import (
    ForwardBatch,
    Model,
    flatten,
    make_forward_batch,
    read_marks,
    without_marks,
)
from ..relay.base import Relay
from ..trace import Touch
from .recording import NOTHING, StepEdges, StepTouches, TokenEdges, Touches

# -- A step ----------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class Step:
    """A batch from its commit to its result (SGLang ``managers/utils.py:GenerationBatchResult``).

    Its ops give handles, not values. While its sampling is delayed, it has no tokens and no copy.
    """

    batch: ScheduleBatch
    flat: ForwardBatch | None = None  # laid out on the host; None: no relay has bound it yet
    inputs: ForwardBatch = field(init=False)  # the same on the device, once it is shipped
    previous: OrNone | None = None  # tokens of the step before, for a relay that takes an op
    logits_output: Op | None = None  # the op forward; its value: logits [num_logits, vocab]
    next_token_ids: Op | None = None  # the op sample; its value: tokens [num_samples]
    copy_done: Op | None = None  # the op copy; its value: tokens on the host
    delay_sample_func: Callable[[], None] | None = None  # launches the other ops, once (#20697)
    parts: tuple[StepPart, ...] = ()  # of the features that its requests use (core/feature.py)
    buffer: int = 0  # number of its pair of output buffers
    launched: list[Op] = field(default_factory=list)
    touches: StepTouches = NOTHING  # memory that its ops will touch, declared at layout
    edges: StepEdges | None = None  # sources of its tokens; None: nothing is recorded
    error: Exception | None = None  # of its preparation; its next launch loses the step
    _result: Result | None = None  # once the host has waited for it

    def __post_init__(self) -> None:
        self.label = Label(self.batch.step, self.batch.mode.value, self.batch.rids)

    @property
    def num_outputs(self) -> int:
        """Return the number of integers in its output buffer."""
        return len(self.batch.reqs)

    @property
    def has_result(self) -> bool:
        """Return whether the host has waited for it, or it has failed."""
        return self._result is not None

    def result(self) -> Result:
        """Block the host until the copy has run. Return an error as a result; raise nothing."""
        if self._result is None:
            try:
                self._result = self.read()
            except Exception as error:
                return self.fail(error)
        return self._result

    def read(self) -> Result:
        """Block the host until the copy has run, and return its content.

        Raises:
            Exception: an op of the step has raised it.
        """
        if self.next_token_ids is None or self.copy_done is None:
            raise RuntimeError("its sampling was delayed, and no thread has launched it since")
        values = self.copy_done.synchronize()
        self.next_token_ids.synchronize()  # done before; raises what the step raised
        for op in self.others():
            op.synchronize()  # done before as well
        for touch in self.touches.read:
            self.copy_done.recorder.touch(*touch)
        tokens, nan_samples = read_marks(values.tolist())
        result = self.split(Result(tokens, nan_samples=nan_samples))
        for part in self.parts:
            result = part.read(result)
        return result

    def others(self) -> Iterable[Op]:
        """Return the ops besides sample and copy with errors that fail the step."""
        return ()

    def split(self, result: Result) -> Result:
        """Return the result with tokens alone, if the buffer has more in it."""
        return result

    def fail(self, error: Exception) -> Result:
        """Mark the step as failed, after waiting for the ops already launched."""
        self._result = Result((), f"step {self.batch.step} failed: {reason_of(error)}")
        for op in self.launched:
            try:
                op.synchronize()
            except Exception as kept:
                kept.__traceback__ = None  # it names frames, and one of these this step
        return self._result


# -- The worker ------------------------------------------------------------------------------------

S = TypeVar("S", bound=Step)


class Worker(Generic[S]):
    """Runs batches on one device with one model and one relay (SGLang ``managers/tp_worker.py``).

    The output buffers are a ring of ``depth`` pairs: with that many steps in flight no step
    overwrites tokens that the host has yet to read. At least ``pins`` batches stay referenced.
    """

    step_class: Callable[[Any], Any] = Step
    forward_streams: tuple[str, ...] = ("forward",)  # several where the model is cut
    places: tuple[str, ...] = ("",)  # prefixes of the names of their memory
    outputs_per_row = 1
    touches_class: Callable[..., Touches] = Touches

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
        pins: int = 0,
        cost: CostModel = NO_COST,
    ) -> None:
        self.device, self.model, self.relay = device, model, relay
        self.cost: CostModel = cost
        self.max_len, self.page_size, self.depth = max_len, page_size, depth
        model.allocate(device, num_slots, max_len)
        size = (max_running_requests + 1) * max_len
        self.page_tables = {at: device.memory(f"{at}page table", size) for at in self.places}
        self.page_table = self.page_tables[self.places[0]]
        device.recorder.mark("row length", **{"page table": max_len, "token pool": max_len})
        size = max_running_requests * self.outputs_per_row
        with memory_for(f"the outputs of {depth} steps in flight", device.name):
            self.outputs = [device.memory(f"output {i}", size) for i in range(depth)]
            self.host_outputs = [device.host_memory(f"host output {i}", size) for i in range(depth)]
        device.recorder.mark("host buffers", count=len(self.outputs), size=size)
        self.batch_record_buf = deque[ForwardBatch](maxlen=max(pins, depth) if pins else 0)
        self.open_streams()
        self.touches = self.touches_class(device.recorder, relay, max_len, page_size, self.places)
        self.token_edges = TokenEdges(device, relay)

    def open_streams(self) -> None:
        """Open the streams of the ops."""
        streams = [self.device.stream(name) for name in self.forward_streams]
        self.forward_stream, self.sample_stream = streams[0], streams[-1]
        self.copy_stream = self.device.stream("copy")

    # -- host: the inputs of a step

    def prepare(self, step: S, previous: Step | None = None) -> None:
        """Lay a step out and ship it; it may take the tokens of ``previous``."""
        self.lay_out(step, previous)
        self.ship(step)

    def lay_out(self, step: S, previous: Step | None = None) -> None:
        """Number the unknown tokens, lay the batch out flat, declare the memory of its ops."""
        batch = step.batch
        step.buffer = batch.step % len(self.outputs)
        ids, future_slots = self.relay.bind(batch, previous.batch if previous else None)
        flat = flatten(batch, ids, future_slots, self.max_len, self.page_size)
        step.touches = self.touches.declare(step, flat)
        for feature in batch.features:
            if (part := feature.step_part(self, step)) is not None:
                step.parts += (part,)
                flat = part.lay_out(flat)
        step.flat = flat
        tokens = previous.next_token_ids if previous and self.relay.is_chained else None
        step.edges = self.token_edges.lay_out(batch, flat, tokens)
        # If ``previous`` fails, this step runs all the same: it may have rows of other requests.
        step.previous = OrNone(tokens) if tokens else None

    def ship(self, step: S) -> None:
        """Bring the flat batch to the device."""
        assert step.flat is not None
        step.inputs = make_forward_batch(step.flat, self.device.xp, self.model.pad_to)
        for part in step.parts:
            part.ship()
        self.launch_upload(step)
        if self.batch_record_buf.maxlen:
            self.record_batch_in_overlap(replace(step.inputs))

    def launch_upload(self, step: S) -> None:
        """Queue the copies that the forward pass needs besides the flat batch."""

    def record_batch_in_overlap(self, inputs: ForwardBatch) -> None:
        """Keep the tensors of the newest batches alive (SGLang's name).

        When the last reference on the host is gone, the memory of a tensor is allocated again,
        although another stream may still read it (SGLang #18744, #2070). The ops of a batch that
        leaves the buffer have ended, because the host has its result.
        """
        self.touches.follow(inputs)
        self.batch_record_buf.append(inputs)

    # -- host: the ops of a step

    def launch(self, step: S, launched_by: int = 0, delay_sample: bool = False) -> None:
        """Queue a step's ops and return; with ``delay_sample`` queue only its forward pass."""
        first = len(step.launched)
        self.launch_forward(step)
        if launched_by:
            self.device.recorder.edge("launch", launched_by, step.launched[first].slice_id)
        if delay_sample:
            step.delay_sample_func = partial(self.launch_rest, step)
            self.device.flush(*step.launched)
        else:
            self.launch_rest(step)

    def launch_rest(self, step: S) -> None:
        """Queue the ops after the forward pass."""
        step.delay_sample_func = None
        self.launch_sample(step)
        self.launch_copy(step)
        for part in step.parts:
            part.after_copy()
        self.device.flush(*step.launched)
        if step.edges is not None:
            self.keep_edges(step, step.edges)

    def queue(
        self,
        step: S,
        name: str,
        run: Callable[..., Any],
        *args: Any,
        on: Stream,
        cost: int = 0,
        touches: Sequence[Touch] = (),
        after: tuple[str, Op] | None = None,
        mode: str = "",
    ) -> Op:
        """Launch one op on a stream. ``run`` gets the value of each op among ``args``.

        ``after`` is the kind and the source of an arrow in the trace. ``mode`` replaces the mode of
        the step in the op's label.
        """
        op: Op = on.launch(
            run, *args, name=name, cost=cost, touches=touches,
            label=replace(step.label, mode=mode) if mode else step.label,
        )  # fmt: skip
        step.launched.append(op)
        if after is not None:
            kind, source = after
            self.device.recorder.edge(kind, source.slice_id, op.slice_id)
        return op

    def keep_edges(self, step: S, edges: StepEdges) -> None:
        """Record the op that leaves each token in the relay."""
        if step.next_token_ids and step.copy_done:
            self.token_edges.sampled(
                edges, step.next_token_ids, step.next_token_ids, step.copy_done
            )

    def update_vocab_mask(
        self, step: S, newest: Mapping[str, Sequence[int]] = MappingProxyType({})
    ) -> None:
        """Build what sampling needs from the known tokens, and from ``newest`` by request id."""
        for part in step.parts:
            part.before_sample(newest)

    # -- the three ops: each one queued on the host, then run on the device

    def launch_forward(self, step: S) -> None:
        """Queue the forward pass."""
        step.logits_output = self.queue(
            step, "forward", self.forward, step.inputs, step.previous, step.edges,
            on=self.forward_stream, cost=self.cost.forward_rows(step.inputs.extents),
            touches=step.touches.forward,
        )  # fmt: skip
        if step.edges is not None:
            self.token_edges.launched(step.edges, step.logits_output)

    def forward(self, inputs: ForwardBatch, previous: Array, edges: StepEdges | None) -> Array:
        """Return logits [num_logits, vocab], on the device."""
        # The table comes first: if the rest fails, the next step still relies on it.
        if len(inputs.table_index):
            self.page_table[inputs.table_index] = inputs.table_slots
        ids = self.relay.resolve_future(inputs.ids, previous)
        if edges is not None:
            self.token_edges.took(edges, ids)
        return self.model.forward(inputs, ids, self.page_table)

    def launch_sample(self, step: S) -> None:
        """Queue the sampling; the copy waits for it."""
        step.next_token_ids = self.queue(
            step, "sample", self.sample, step.logits_output, self.sample_inputs(step), step.buffer,
            on=self.sample_stream, cost=self.cost.sample_rows(len(step.batch.reqs)),
            touches=step.touches.sample,
        )  # fmt: skip
        self.copy_stream.wait(step.next_token_ids)

    def sample_inputs(self, step: S) -> ForwardBatch:
        """Return the inputs of a step, with what its features change for the sampling."""
        inputs = step.inputs
        for part in step.parts:
            inputs = part.sample_inputs(inputs)
        return inputs

    def sample(self, logits: Array, inputs: ForwardBatch, buffer: int) -> Array:
        """Return tokens [num_samples], on the device; leave them in relay and output buffer too."""
        tokens = self.choose(logits, inputs, buffer)
        self.relay.store_to_map(inputs.future_slots, tokens)
        return tokens

    def choose(self, logits: Array, inputs: ForwardBatch, buffer: int) -> Array:
        """Sample tokens [num_samples] into the output buffer, on the device; return them."""
        if inputs.samples_at is not None:  # there are logits of prompts too
            logits = logits[inputs.samples_at]
        marked = self.model.sample(logits, inputs)
        self.outputs[buffer][: len(inputs.sampling)] = marked
        return without_marks(self.device.xp, marked)

    def launch_copy(self, step: S) -> None:
        """Queue the copy of the output buffer."""
        assert step.next_token_ids is not None
        step.copy_done = self.queue(
            step, "copy", self.copy, step.buffer, step.num_outputs,
            on=self.copy_stream, cost=self.cost.copy, touches=step.touches.copy,
            after=("copy", step.next_token_ids),
        )  # fmt: skip

    def copy(self, buffer: int, size: int) -> Array:
        """Bring the first ``size`` integers of the output buffer to the host."""
        return self.device.copy_to_host(self.host_outputs[buffer], self.outputs[buffer], size)

    # -- the op of a lost step (``lost.py``)

    def launch_fill(self, step: S, fill: Callable[..., Array]) -> None:
        """Queue the op that replaces the forward pass of a lost step."""
        step.logits_output = self.queue(
            step, "page table", fill, self, step.flat, self.page_table,
            on=self.forward_stream, touches=step.touches.forward,
        )  # fmt: skip
