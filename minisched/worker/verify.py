"""Steps that carry drafts: verify them, say how many count, and draft for the step behind.

(SGLang ``speculative/``, vLLM ``v1/spec_decode/``.) A step is up to five ops: ``forward`` over the
last token of each row and the drafts behind it; ``sample`` at each of these places, from (seed,
request, position) as ever; ``verify``, which counts the drafts that are what was sampled;
``draft``, where the device drafts; ``copy``. So a draft never changes a token, it only saves a
step.

A step that is launched before the one in front of it has come back takes its last token, its
drafts and its lengths from the relay (``DraftRelay``). Where the ops are built by the host
(``Device.built_by_host``) lengths must be known at launch: there the host waits for the step in
front.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from ..core import Lease, LogitAdjustment, ScheduleBatch
from ..devices.base import Array, Arrays
from ..models.base import ForwardBatch, at_starts, without_marks
from ..relay.base import DraftRelay
from ..speculative.base import Drafter
from .logprobs import sampled_logits
from .recipes import LOGPROBS
from .recording import StepEdges
from .worker import COPY, FORWARD, SAMPLE, Output, Recipe, Step, StepOp, Worker

# -- What the host does before such a step is laid out ---------------------------------------------


@dataclass
class Drafts:
    """What the ops of one step tell each other: where its rows begin, found out by the first."""

    room: Sequence[int]  # [num_reqs] positions for which each row has memory
    bound: Any  # what its drafter must be told of it
    inputs: ForwardBatch | None = None  # at the positions where its rows really begin

    @property
    def moved(self) -> ForwardBatch:
        """The step as its forward pass has found it."""
        assert self.inputs is not None
        return self.inputs


class Speculation:
    """The host's part of it; ``drafter`` is None where the host drafts as well."""

    def __init__(self, num_draft_tokens: int, drafter: Drafter | None = None) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.drafter = drafter
        self.unread = UnreadSteps()

    @property
    def parts(self) -> dict[str, Any]:
        """What a worker is made of that speculates."""
        return {
            "recipe": verify_recipe(self.drafter),
            "begin": self.begin,
            "num_draft_tokens": self.num_draft_tokens,
            "drafter": self.drafter,
        }

    def begin(self, worker: Worker, step: Step) -> ScheduleBatch:
        """Host: how a step is laid out; where it builds the ops, once it knows where rows begin."""
        batch, xp = step.batch, worker.device.xp
        known = batch
        if worker.device.built_by_host:
            if any(batch.start_unknown):
                worker.device.recorder.mark(
                    "wait", step=batch.step, reason="speculation", op="forward"
                )
                known = self.unread.fill(batch)
            self.unread.add(step)
        room = [len(lease.pages) * worker.page_size for lease in batch.leases]
        step.drafts = Drafts(room, self.drafter.bind(batch, xp) if self.drafter else None)
        step.num_outputs = batch.num_samples + len(batch.reqs)
        if self.drafter is not None:
            step.num_outputs += len(batch.reqs) * self.num_draft_tokens
        return known


# -- What steps in flight have given, for devices on which the next one cannot be built without ----

Input = tuple[int, Sequence[int]]  # where a row goes on, and with which tokens: the last, drafts


class UnreadSteps:
    """The newest step of each row that has memory: the scheduler may not have processed it yet.

    Where ops are built by the host (CUDA, MLX), a step's shapes and positions must be numbers when
    it is launched. With speculation they depend on how many drafts the step in front accepted, so
    the host waits for that one. (SGLang keeps the lengths on the device and has CUDA kernels that
    read them there, for upper bounds that the host knows.)

    However many steps are in flight, and whichever of them leave a row out, its newest one is here.
    """

    def __init__(self) -> None:
        self.newest: dict[Lease, Step] = {}

    def add(self, step: Step) -> None:
        """A step is to be launched, with inputs that are all numbers; free rows are forgotten."""
        kept = {lease: of for lease, of in self.newest.items() if not lease.is_released}
        self.newest = kept | dict.fromkeys(step.batch.leases, step)

    def fill(self, batch: ScheduleBatch) -> ScheduleBatch:
        """Host: ``batch`` with tokens and positions in the place of what was unknown.

        Blocks. Behind a step that has failed or was lost, tokens are 0: its requests end anyway.

        Raises:
            RuntimeError: nobody has launched a step for a row in which something is unknown.
        """
        given: dict[int, dict[Lease, Input]] = {}  # by step, each of which is read once
        starts, ids = list(batch.starts), list(batch.ids)
        for at, lease in enumerate(batch.leases):
            if not batch.start_unknown[at]:
                continue
            if lease not in self.newest:
                raise RuntimeError(
                    f"step {batch.step} wants a token of {lease.rid!r} (row {lease.row}) that no "
                    "launched step brings"
                )
            step = self.newest[lease]
            if step.batch.step not in given:
                given[step.batch.step] = read(step)
            starts[at], tokens = given[step.batch.step].get(lease, (starts[at], [0] * len(ids[at])))
            ids[at] = tuple(tokens[: len(ids[at])])
        return replace(batch, starts=starts, ids=ids)


def read(step: Step) -> dict[Lease, Input]:
    """Host: what a step has given to each of its leases; nothing if it has failed.

    Blocks until it has ended.
    """
    batch, result = step.batch, step.result()
    if result.num_accepted_tokens is None:
        return {}
    inputs = step.inputs
    k = len(result.drafts) // len(batch.reqs)
    firsts = accumulate(batch.sample_lens, initial=0)
    given: dict[Lease, Input] = {}
    columns = zip(batch.leases, firsts, result.num_accepted_tokens, strict=False)
    for at, (lease, first, count) in enumerate(columns):
        start = inputs.sampling[first][2] + count - 1
        newest = result.tokens[first + count - 1]
        given[lease] = start, [newest, *result.drafts[at * k : at * k + k]]
    return given


# -- The ops: forward, sample, verify, draft -------------------------------------------------------


def forward(worker: Worker, inputs: ForwardBatch, edges: StepEdges | None, drafts: Drafts) -> Array:
    """Device: find out where rows begin, and compute logits [num_logits, vocab]."""
    if len(inputs.table_index):
        worker.page_table[inputs.table_index] = inputs.table_slots
    if any(inputs.start_unknown):
        inputs = resolve_starts(worker, inputs, drafts.room)
    drafts.inputs = inputs = replace(inputs, ids=worker.relay.resolve(inputs.ids, None))
    if edges is not None:
        worker.token_edges.took(edges, inputs.ids)
    return worker.model.forward(inputs, inputs.ids, worker.page_table)


def resolve_starts(worker: Worker, inputs: ForwardBatch, room: Sequence[int]) -> ForwardBatch:
    """Device: the step at the positions where its rows really begin.

    The step before has left them in the relay. If that one failed, something else is there. Then
    the row is nobody's, but it must not write where its request has no memory, nor into a prefix
    that others read.
    """
    assert isinstance(worker.relay, DraftRelay)
    starts = list(inputs.prefix_lens)
    hidden = [row for row, unknown in enumerate(inputs.start_unknown) if unknown]
    real = worker.relay.start_of([inputs.rows[row] for row in hidden]).tolist()
    for row, start in zip(hidden, real, strict=True):
        starts[row] = max(starts[row], min(start, room[row] - inputs.extend_lens[row]))
    return at_starts(inputs, starts, worker.device.xp)


def sample(
    worker: Worker,
    logits: Array,
    drafts: Drafts,
    adjustments: list[LogitAdjustment | None],
    output: Output,
) -> Array:
    """Device: what the target itself chooses at each place, tokens [num_samples]."""
    xp, inputs = worker.device.xp, replace(drafts.moved, adjustments=adjustments)
    if inputs.logprobs is not None:
        logits = sampled_logits(xp, inputs.logprobs, logits)
    marked = worker.model.sample(logits, inputs)
    output.on_device[: len(inputs.sampling)] = marked
    return without_marks(xp, marked)


def verify(worker: Worker, tokens: Array, drafts: Drafts, dests: Array, output: Output) -> Array:
    """Device: how many tokens of each row count, [num_reqs]; the relay learns the newest."""
    inputs, relay, xp = drafts.moved, worker.relay, worker.device.xp
    accepted = count_accepted(xp, inputs, tokens)
    firsts = list(accumulate(inputs.sample_lens, initial=0))[:-1]
    at = xp.add(xp.asarray(firsts), accepted) - 1  # each row's newest token
    relay.store(dests, tokens[at])
    if isinstance(relay, DraftRelay):
        before = xp.asarray([inputs.sampling[first][2] for first in firsts])
        relay.stash_lens(inputs.rows, xp.add(before, accepted))
    start = len(inputs.sampling)
    output.on_device[start : start + len(inputs.rows)] = accepted
    return accepted


def draft(
    drafter: Drafter,
    worker: Worker,
    tokens: Array,
    accepted: Array,
    drafts: Drafts,
    output: Output,
) -> Array:
    """Device: drafts for the step behind this one, [num_reqs * k]."""
    inputs, relay = drafts.moved, worker.relay
    guesses = drafter.draft(inputs, drafts.bound, tokens, accepted, worker.page_table)
    if isinstance(relay, DraftRelay):
        relay.stash_drafts(inputs.rows, guesses)
    start = len(inputs.sampling) + len(inputs.rows)
    output.on_device[start : start + len(guesses)] = guesses
    return guesses


def count_accepted(xp: Arrays, inputs: ForwardBatch, tokens: Array) -> Array:
    """Device: 1 and the drafts that are what was sampled in their place, [num_reqs].

    Of the inputs [last, d1, .., dk] of a row the target made [t0, .., tk]: d1 is right if it is t0.
    """
    ids, width = inputs.ids, max(inputs.sample_lens) - 1
    ends, samples = accumulate(inputs.extend_lens), accumulate(inputs.sample_lens)
    draft_at, target_at, is_draft = [], [], []
    for end, sampled, count in zip(ends, samples, inputs.sample_lens, strict=True):
        for at in range(width):
            there = at < count - 1
            is_draft.append(there)
            draft_at.append(end - count + 1 + at if there else 0)
            target_at.append(sampled - count + at if there else 0)
    drafts = xp.where(
        xp.mask(is_draft), ids[xp.asarray(draft_at)], xp.asarray([-1] * len(draft_at))
    )
    return xp.count_equal(drafts, tokens[xp.asarray(target_at)], width, len(inputs.rows))


# -- The recipe ------------------------------------------------------------------------------------


def verify_recipe(drafter: Drafter | None = None) -> Recipe:
    """Forward, sample, verify, and draft where the device does that; then copy all three."""
    ops = [
        replace(FORWARD, run=forward, takes=("inputs", "edges", "drafts"), edge=("", "")),
        replace(
            SAMPLE,
            run=sample,
            takes=("logits_output", "drafts", "adjustments", "output"),
            awaited_by="",
            cost=lambda worker, step: worker.cost.sample,
            touches=lambda worker, step: [
                *step.touches.sample, step.output.left(0, step.batch.num_samples),
            ],
        ),
        StepOp(
            "verify",
            verify,
            takes=("next_token_ids", "drafts", "future_indices", "output"),
            gives="num_accepted_tokens",
            awaited_by="copy" if drafter is None else "",
            cost=lambda worker, step: worker.cost.verify,
            touches=lambda worker, step: [*step.touches.verify, step.output.left(*counted(step))],
        ),
    ]  # fmt: skip
    if drafter is not None:
        drafts = StepOp(
            "draft",
            partial(draft, drafter),
            takes=("next_token_ids", "num_accepted_tokens", "drafts", "output"),
            gives="next_draft_input",
            awaited_by="copy",
            cost=lambda worker, step: drafter.cost(worker.cost, step.inputs.num_tokens),
            touches=lambda worker, step: [
                *step.touches.draft, step.output.left(counted(step)[1], step.num_outputs),
            ],
            mode="draft extend",
        )  # fmt: skip
        ops.append(drafts)
    return (*ops, replace(COPY, edge=("copy", ops[-1].gives)), *LOGPROBS)


def counted(step: Step) -> tuple[int, int]:
    """Where in its output buffer it is said how many tokens count."""
    return step.batch.num_samples, step.batch.num_samples + len(step.batch.reqs)
