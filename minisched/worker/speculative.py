"""Steps that carry drafts: verify them, say how many count, and draft for the step behind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core import ScheduleBatch
from ..models.forward_batch import ForwardBatch
from ..speculative.base import Drafter
from .batch_record import OverlapWorker
from .draft_touches import DraftTouches
from .generation_batch_result import GenerationBatchResult
from .unread_steps import UnreadSteps
from .verify_step import VerifyStep


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
