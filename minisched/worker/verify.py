"""Steps that carry drafts: verify them, say how many count, and draft for the step behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from ..core import Lease, LogitAdjustment, ScheduleBatch
from ..devices.base import Array, Arrays, Buffer
from ..models.base import ForwardBatch, at_starts, without_marks
from ..relay.base import DraftRelay
from ..speculative.base import Drafter
from .logprobs import sampled_logits
from .touches import DraftTouches
from .worker import GenerationBatchResult, OverlapWorker, Worker

# -- What steps in flight have given, for devices on which the next one cannot be built without ----

Input = tuple[int, Sequence[int]]  # where a row goes on, and with which tokens: the last, drafts


class Launched(NamedTuple):
    """A step that was launched, with inputs that are all numbers; or one that was lost before."""

    pending: GenerationBatchResult
    inputs: ForwardBatch | None


class UnreadSteps:
    """The newest step of each row that has memory: the scheduler may not have processed it yet.

    Where ops are built by the host (CUDA, MLX), a step's shapes and positions must be numbers when
    it is launched. With speculation they depend on how many drafts the step in front accepted, so
    the host waits for that one. (SGLang keeps the lengths on the device and has CUDA kernels that
    read them there, for upper bounds that the host knows.)

    However many steps are in flight, and whichever of them leave a row out, its newest one is here.
    """

    def __init__(self) -> None:
        self.newest: dict[Lease, Launched] = {}

    def add(self, pending: GenerationBatchResult, inputs: ForwardBatch | None) -> None:
        """A step has been launched, or is lost (no inputs); rows that are free are forgotten."""
        kept = {lease: step for lease, step in self.newest.items() if not lease.is_released}
        self.newest = kept | dict.fromkeys(pending.batch.leases, Launched(pending, inputs))

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
            pending, inputs = self.newest[lease]
            step = pending.batch.step
            if step not in given:
                given[step] = read(pending, inputs)
            starts[at], tokens = given[step].get(lease, (starts[at], [0] * len(ids[at])))
            ids[at] = tuple(tokens[: len(ids[at])])
        return replace(batch, starts=starts, ids=ids)


def read(pending: GenerationBatchResult, inputs: ForwardBatch | None) -> dict[Lease, Input]:
    """Host: what a step has given to each of its leases; nothing if it has failed.

    Blocks until it has ended.
    """
    batch, result = pending.batch, pending.result()
    if result.num_accepted_tokens is None or inputs is None:
        return {}
    k = len(result.drafts) // len(batch.reqs)
    firsts = accumulate(batch.sample_lens, initial=0)
    given: dict[Lease, Input] = {}
    columns = zip(batch.leases, firsts, result.num_accepted_tokens, strict=False)
    for at, (lease, first, count) in enumerate(columns):
        start = inputs.sampling[first][2] + count - 1
        newest = result.tokens[first + count - 1]
        given[lease] = start, [newest, *result.drafts[at * k : at * k + k]]
    return given


# -- The ops of one step that may carry drafts: forward, sample, verify, draft ---------------------


class VerifyStep:
    """One step's ops, and what the first of them finds out for the others."""

    def __init__(
        self,
        worker: Worker,
        batch: ScheduleBatch,
        drafter: Drafter | None,
        inputs: ForwardBatch,
        bound: Any,
        room: Sequence[int],
    ) -> None:
        self.worker, self.batch = worker, batch
        self.carrier = worker.relay if isinstance(worker.relay, DraftRelay) else None
        self.drafter = drafter
        self.inputs = inputs
        self.bound = bound
        self.room = room  # [num_reqs] positions for which each row has memory

    def forward(self) -> Array:
        """Device: find out where rows begin, and compute logits [num_logits, vocab]."""
        worker, inputs = self.worker, self.inputs
        if len(inputs.table_index):
            worker.page_table[inputs.table_index] = inputs.table_slots
        if any(inputs.start_unknown):
            self.inputs = inputs = self.resolve_starts()
        self.inputs = replace(inputs, ids=worker.relay.resolve(inputs.ids, None))
        worker.token_edges.took(self.batch, self.inputs.ids)
        return worker.model.forward(self.inputs, self.inputs.ids, worker.page_table)

    def resolve_starts(self) -> ForwardBatch:
        """Device: the step at the positions where its rows really begin.

        The step before has left them in the relay. If that one failed, something else is there.
        Then the row is nobody's, but it must not write where its request has no memory, nor into
        a prefix that others read.
        """
        assert self.carrier is not None
        inputs, starts = self.inputs, list(self.inputs.prefix_lens)
        hidden = [row for row, unknown in enumerate(inputs.start_unknown) if unknown]
        real = self.carrier.start_of([inputs.rows[row] for row in hidden]).tolist()
        for row, start in zip(hidden, real, strict=True):
            starts[row] = max(starts[row], min(start, self.room[row] - inputs.extend_lens[row]))
        return at_starts(inputs, starts, self.worker.device.xp)

    def sample(
        self, logits: Array, adjustments: list[LogitAdjustment | None], output: Buffer
    ) -> Array:
        """Device: what the target itself chooses at each place, tokens [num_samples]."""
        logits = sampled_logits(self.worker.device.xp, self.inputs, logits)
        marked = self.worker.model.sample(logits, replace(self.inputs, adjustments=adjustments))
        output[: len(self.inputs.sampling)] = marked
        return without_marks(self.worker.device.xp, marked)

    def verify(self, tokens: Array, dests: Array, output: Buffer) -> Array:
        """Device: how many tokens of each row count, [num_reqs]; the relay learns the newest."""
        worker, inputs, xp = self.worker, self.inputs, self.worker.device.xp
        accepted = count_accepted(xp, inputs, tokens)
        firsts = list(accumulate(inputs.sample_lens, initial=0))[:-1]
        at = xp.add(xp.asarray(firsts), accepted) - 1  # each row's newest token
        worker.relay.store(dests, tokens[at])
        if self.carrier is not None:
            before = xp.asarray([inputs.sampling[first][2] for first in firsts])
            self.carrier.stash_lens(inputs.rows, xp.add(before, accepted))
        start = len(inputs.sampling)
        output[start : start + len(inputs.rows)] = accepted
        return accepted

    def draft(self, tokens: Array, accepted: Array, output: Buffer) -> Array:
        """Device: drafts for the step behind this one, [num_reqs * k]."""
        inputs, page_table = self.inputs, self.worker.page_table
        assert self.drafter is not None
        drafts = self.drafter.draft(inputs, self.bound, tokens, accepted, page_table)
        if self.carrier is not None:
            self.carrier.stash_drafts(inputs.rows, drafts)
        start = len(inputs.sampling) + len(inputs.rows)
        output[start : start + len(drafts)] = drafts
        return drafts


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


class SpeculativeWorker(OverlapWorker):
    """A worker whose steps may carry drafts (SGLang ``speculative/``, vLLM ``v1/spec_decode/``).

    A step is up to five ops: ``forward`` over the last token of each row and the drafts behind it;
    ``sample`` at each of these places, from (seed, request, position) as ever; ``verify``, which
    counts the drafts that are what was sampled; ``draft``, where the device drafts; ``copy``. So a
    draft never changes a token, it only saves a step.

    A step that is launched before the one in front of it has come back takes its last token, its
    drafts and its lengths from the relay (``DraftRelay``). Where the ops are built by the host
    (``Device.built_by_host``) lengths must be known at launch: there the host waits for the step
    in front.
    """

    touches: DraftTouches
    touches_of = DraftTouches

    def __init__(
        self, *args: Any, num_draft_tokens: int, drafter: Drafter | None = None, **options: Any
    ) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.drafter = drafter
        super().__init__(*args, **options)
        self.touches.drafter = drafter
        self.unread = UnreadSteps() if self.device.built_by_host else None
        self.steps: dict[int, VerifyStep] = {}  # launched, and not sampled yet
        if drafter is not None:
            drafter.allocate(
                self.device, options["num_slots"], self.max_running_requests, self.max_len
            )

    def prepare(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None
    ) -> ForwardBatch:
        """Host: lay the batch out; where it builds the ops, once it knows where rows begin."""
        if self.unread is None or not any(batch.start_unknown):
            return super().prepare(batch, previous)
        self.device.recorder.mark("wait", step=batch.step, reason="speculation", op="forward")
        inputs = super().prepare(self.unread.fill(batch), previous)
        unknown = [row for row, hidden in enumerate(batch.start_unknown) if hidden]
        self.token_edges.filled_with_newest(batch, unknown)
        return inputs

    @property
    def output_len(self) -> int:
        """Integers that a step can leave for the host: tokens, how many count, drafts."""
        return self.max_running_requests * (2 + 2 * self.num_draft_tokens)

    def launch_forward(
        self,
        batch: ScheduleBatch,
        inputs: ForwardBatch,
        previous: GenerationBatchResult | None = None,
        launched_by: int = 0,
    ) -> GenerationBatchResult:
        """Host: queue the forward pass."""
        bound = self.drafter.bind(batch, self.device.xp) if self.drafter else None
        room = [len(lease.pages) * self.page_size for lease in batch.leases]
        step = self.steps[batch.step] = VerifyStep(
            self, batch, self.drafter, replace(inputs), bound, room
        )
        logits = self.forward_stream.launch(
            step.forward,
            name="forward", cost=self.cost.forward_rows(inputs.extents), label=inputs.label,
            touches=self.touches.of(batch).forward,
        )  # fmt: skip
        self.device.recorder.edge("launch", launched_by, logits.slice_id)
        self.token_edges.launched(batch, logits, previous)
        return GenerationBatchResult(batch, logits, future_indices=inputs.dests)

    def launch_sample(self, pending: GenerationBatchResult, inputs: ForwardBatch) -> None:
        """Host: queue sampling, verification, drafting, and the copy of all three."""
        batch, label = pending.batch, inputs.label
        step, stream, cost = self.steps.pop(batch.step), self.forward_stream, self.cost
        adjustments = self.unsampled.take(batch)
        output, touches = self.outputs.of(batch.step), self.touches.take(batch)
        num_samples, size = batch.num_samples, batch.num_samples + len(batch.reqs)
        pending.delay_sample_func = None
        pending.next_token_ids = tokens = stream.launch(
            step.sample, pending.logits_output, adjustments, output.on_device,
            name="sample", cost=cost.sample, label=label,
            touches=[*touches.sample, output.left(0, num_samples)],
        )  # fmt: skip
        pending.num_accepted_tokens = last = accepted = stream.launch(
            step.verify, tokens, pending.future_indices, output.on_device,
            name="verify", cost=cost.verify, label=label,
            touches=[*touches.verify, output.left(num_samples, size)],
        )  # fmt: skip
        if self.drafter is not None:
            counted, size = size, size + len(batch.reqs) * self.num_draft_tokens
            pending.next_draft_input = last = stream.launch(
                step.draft, tokens, accepted, output.on_device, name="draft",
                cost=self.drafter.cost(cost, inputs.num_tokens),
                label=replace(label, mode="draft extend"),
                touches=[*touches.draft, output.left(counted, size)],
            )  # fmt: skip
        self.launch_copy(pending, last, size, inputs)
        if self.unread is not None:
            self.unread.add(pending, inputs)

    def lost(self, pending: GenerationBatchResult) -> None:
        """Host: a step will give nothing; a row behind it need not look for that."""
        if self.unread is not None:
            self.unread.add(pending, None)
