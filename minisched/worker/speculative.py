"""Steps that carry drafts: verify them, say how many count, and draft for the step behind."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

from ..core import LogitAdjustment, ScheduleBatch
from ..devices.base import Array, Arrays, Buffer
from ..models.forward_batch import ForwardBatch, at_starts
from ..relay.base import DraftRelay
from ..speculative.base import Drafter
from .batch_record import OverlapWorker
from .generation_batch_result import GenerationBatchResult
from .sampling_info import make_adjustments
from .unread_steps import UnreadSteps

BUILT_BY_HOST = ("cuda", "mlx")  # their ops run on the host, at launch: lengths must be there then


class VerifyStep:
    """One step's ops, and what the first of them finds out for the others."""

    def __init__(self, worker: SpeculativeWorker, inputs: ForwardBatch, bound: Any) -> None:
        self.worker = worker
        self.inputs = inputs
        self.bound = bound

    def forward(self) -> Array:
        """Device: find out where rows begin, and compute logits [num_logits, vocab]."""
        worker, inputs = self.worker, self.inputs
        if any(inputs.start_unknown):
            self.inputs = inputs = resolve_starts(inputs, worker.draft_relay, worker.device.xp)
        if len(inputs.table_index):
            worker.page_table[inputs.table_index] = inputs.table_slots
        self.inputs = replace(inputs, ids=worker.relay.resolve(inputs.ids, None))
        return worker.model.forward(self.inputs, self.inputs.ids, worker.page_table)

    def sample(
        self, logits: Array, adjustments: list[LogitAdjustment | None], output: Buffer
    ) -> Array:
        """Device: what the target itself chooses at each place, tokens [num_samples]."""
        tokens = self.worker.model.sample(logits, replace(self.inputs, adjustments=adjustments))
        output[: len(self.inputs.sampling)] = tokens
        return tokens

    def verify(self, tokens: Array, output: Buffer) -> Array:
        """Device: how many tokens of each row count, [num_reqs]; the relay learns the newest."""
        worker, inputs, xp = self.worker, self.inputs, self.worker.device.xp
        accepted = count_accepted(xp, inputs, tokens)
        firsts = list(accumulate(inputs.sample_lens, initial=0))[:-1]
        at = xp.add(xp.asarray(firsts), accepted) - 1  # each row's newest token
        worker.relay.store(inputs.dests, tokens[at])
        if worker.draft_relay is not None:
            before = xp.asarray([inputs.sampling[first][2] for first in firsts])
            worker.draft_relay.stash_lens(inputs.rows, xp.add(before, accepted))
        start = len(inputs.sampling)
        output[start : start + len(inputs.rows)] = accepted
        return accepted

    def draft(self, tokens: Array, accepted: Array, output: Buffer) -> Array:
        """Device: drafts for the step behind this one, [num_reqs * k]."""
        worker, inputs = self.worker, self.inputs
        assert worker.drafter is not None
        drafts = worker.drafter.draft(inputs, self.bound, tokens, accepted, worker.page_table)
        if worker.draft_relay is not None:
            worker.draft_relay.stash_drafts(inputs.rows, drafts)
        start = len(inputs.sampling) + len(inputs.rows)
        output[start : start + len(drafts)] = drafts
        return drafts


class SpeculativeWorker(OverlapWorker):
    """A worker whose steps may carry drafts (SGLang ``speculative/``, vLLM ``v1/spec_decode/``).

    A step is up to five ops: ``forward`` over the last token of each row and the drafts behind it;
    ``sample`` at each of these places, from (seed, request, position) as ever; ``verify``, which
    counts the drafts that are what was sampled; ``draft``, where the device drafts; ``copy``. So a
    draft never changes a token, it only saves a step.

    A step that is launched before the one in front of it has come back takes its last token, its
    drafts and its lengths from the relay (``DraftRelay``). Where the ops are built by the host
    (CUDA, MLX) lengths must be known at launch: there the host waits for the step in front.
    """

    def __init__(
        self, *args: Any, num_draft_tokens: int, drafter: Drafter | None = None, **options: Any
    ) -> None:
        self.num_draft_tokens = num_draft_tokens
        self.drafter = drafter
        super().__init__(*args, **options)
        self.draft_relay = self.relay if isinstance(self.relay, DraftRelay) else None
        self.unread = UnreadSteps(4) if self.device.name in BUILT_BY_HOST else None
        self.steps: dict[int, VerifyStep] = {}  # launched, and not sampled yet
        if drafter is not None:
            drafter.allocate(
                self.device, options["num_slots"], self.max_running_requests, self.max_len
            )

    def prepare(
        self, batch: ScheduleBatch, previous: GenerationBatchResult | None = None
    ) -> ForwardBatch:
        """Host: lay the batch out; where the host builds the ops, once it knows where rows begin."""
        if self.unread is not None and any(batch.start_unknown):
            self.device.recorder.mark("wait", step=batch.step, reason="speculation", op="forward")
            batch = self.unread.fill(batch)
        return super().prepare(batch, previous)

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
        step = self.steps[batch.step] = VerifyStep(self, inputs, bound)
        logits = self.forward_stream.launch(
            step.forward,
            name="forward", cost=self.cost.forward(inputs.num_tokens), label=inputs.label,
        )  # fmt: skip
        self.device.recorder.edge("launch", launched_by, logits.slice_id)
        self._draw_token_edges(batch, logits)
        return GenerationBatchResult(batch, logits, future_indices=inputs.future_indices)

    def launch_sample(self, pending: GenerationBatchResult, inputs: ForwardBatch) -> None:
        """Host: queue sampling, verification, drafting, and the copy of all three."""
        batch, label = pending.batch, inputs.label
        step, stream, cost = self.steps.pop(batch.step), self.forward_stream, self.cost
        adjustments = make_adjustments(batch)
        source, _ = self.outputs[batch.step % len(self.outputs)]
        pending.delay_sample_func = None
        pending.next_token_ids = tokens = stream.launch(
            step.sample, pending.logits_output, adjustments, source,
            name="sample", cost=cost.sample, label=label,
        )  # fmt: skip
        pending.num_accepted_tokens = last = accepted = stream.launch(
            step.verify, tokens, source, name="verify", cost=cost.verify, label=label
        )
        size = batch.num_samples + len(batch.reqs)
        if self.drafter is not None:
            pending.next_draft_input = last = stream.launch(
                step.draft, tokens, accepted, source, name="draft",
                cost=self.drafter.cost(cost, inputs.num_tokens),
                label=replace(label, mode="draft extend"),
            )  # fmt: skip
            size += len(batch.reqs) * self.num_draft_tokens
        self.launch_copy(pending, last, size, label)
        if self.unread is not None:
            self.unread.add(pending, inputs)


def resolve_starts(inputs: ForwardBatch, relay: DraftRelay | None, xp: Arrays) -> ForwardBatch:
    """Device: the step at the positions where its rows really begin."""
    assert relay is not None
    starts = relay.start_of(inputs.rows).tolist()
    columns = zip(inputs.start_unknown, starts, inputs.prefix_lens, strict=True)
    return at_starts(inputs, [real if hidden else start for hidden, real, start in columns], xp)


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
