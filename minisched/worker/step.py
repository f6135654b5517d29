"""A step: a batch on its way, and the list of ops that it is made of.

All that is kept of a batch between its commit and its result is in one ``Step``: what was laid out
of it, handles on what its ops give, what it waits for. What it does on the device is a list of
``StepOp``; which ones, its recipe says (``worker.py``). An op takes fields of the step and gives
one: so the data flow of a step is what its ops name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ..core import LogitAdjustment, ModelWorkerBatch, Result, ScheduleBatch
from ..devices.base import Array, Buffer, Device, Label, Op, OrNone
from ..models.base import ForwardBatch, read_marks
from ..relay.base import Prompts
from ..trace import Touch
from .failure import memory_for, reason_of
from .logprobs import read_logprobs
from .recording import NOTHING, StepEdges, StepTouches


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


def nothing() -> None:
    """Nothing."""


@dataclass(eq=False, repr=False)
class Step:
    """A batch on its way (SGLang ``managers/utils.py:GenerationBatchResult``).

    ``batch`` is the step as it was committed; SGLang puts the pair of both into its
    ``result_queue``. The nine published fields come next. Each op gives one of them and takes
    others (``StepOp.gives``, ``takes``); what else writes or reads it is said here. A step whose
    sampling is delayed has neither tokens nor a copy before ``delay_sample_func`` was called.
    """

    batch: ScheduleBatch
    logits_output: Op | None = None
    """Logits [num_logits, vocab], before anything is sampled. Given by ``forward`` (in a pipeline
    by its last stage); taken by ``sample`` and ``logprobs``. Whoever launches up to it delays the
    sampling. Of a step that is lost it is what stands in for the pass."""
    next_token_ids: Op | None = None
    """Tokens [num_samples]. Given by ``sample``, which also leaves them in the relay. Taken by the
    next step's ``forward``, where one is built upon the other (``previous``); by ``logprobs``,
    ``verify`` and ``draft``. Read by ``result``."""
    num_accepted_tokens: Op | None = None
    """How many of each row's tokens count, [num_reqs] (SGLang: accept_lens, with their sum under
    this name); None where no step may carry drafts. Given by ``verify``, which also leaves the
    lengths in the relay; taken by ``draft``. Read by ``result``: the scheduler takes the rest
    back."""
    next_draft_input: Op | None = None
    """Drafts for the step behind this one, [num_reqs * k]; None where the host drafts. Given by
    ``draft``, which leaves them in the relay, where the next step's forward pass finds them. Read,
    when it has been copied, by ``result``."""
    extend_input_len_per_req: Sequence[int] = ()
    """Positions that each prompt computes here, [num_extend_reqs]; empty where nobody wants
    log-probabilities. Written by ``ship``, from the batch: the live requests have moved on when the
    result is there. Read by ``result``, which tells them apart."""
    extend_logprob_start_len_per_req: Sequence[int] = ()
    """Where in each prompt's part log-probabilities begin, [num_extend_reqs]; the part's length
    where none are wanted. Written by ``ship``; read by ``result``."""
    copy_done: Op | None = None
    """The copy to the host, as an event and a handle. Given by ``copy``, on the copy stream, behind
    the sampling. Read by vLLM's ``is_done``, which asks whether it has run, and by ``result``,
    which blocks on it, in an overlapping loop one step later."""
    delay_sample_func: Callable[[], None] | None = None
    """Launches the rest. Written by ``launch``: set where it stops before the sampling, and None
    again when that is launched (#20697). Read, and called, when the result before has been
    processed, by ``launch_batch_sample_if_needed``."""
    future_indices: Array = None
    """Where the relay keeps each row's newest token, on the device, [num_reqs]. Written by
    ``ship``, from what the relay bound; taken by ``sample`` (with drafts ``verify``), which stores
    there."""

    flat: ModelWorkerBatch | None = None  # laid out on the host; None: no relay has bound it yet
    inputs: ForwardBatch = field(init=False)  # the same on the device, once it is shipped
    output: Output = field(init=False)  # its pair of buffers
    num_outputs: int = 0  # integers that it leaves there
    adjustments: list[LogitAdjustment | None] | None = None
    """Masks and penalties, [num_samples] or empty; None: nobody has built them yet."""
    previous: OrNone | None = None  # the tokens that it is built upon, where the relay takes an op
    prompts: Prompts | None = (
        None  # what the relay copies to the device for it, until that is queued
    )
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
    on_read: Callable[[], None] = nothing  # says in the trace that the host has read the copy
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


def free(worker: Any, step: Step) -> int:
    """Takes no time on ``sim``."""
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
    cost: Callable[[Any, Step], int] = free  # nanoseconds on ``sim``; of worker and step
    touches: Callable[[Any, Step], Sequence[Touch]] = lambda worker, step: ()
    when: Callable[[Step], bool] = lambda step: True  # whether a step has it
    place: str = ""  # of a pipeline's stage: what the names of its own memory begin with
    mode: str = ""  # that its slice shows, if it is not the step's


Recipe = tuple[StepOp, ...]
