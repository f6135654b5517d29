"""Steps with drafts: verify them, count those that are accepted, and draft for the next step.

SGLang ``speculative/``, vLLM ``v1/spec_decode/``. A step has up to five ops. ``forward`` computes
the last token of each row and its drafts. ``sample`` chooses a token at each of these places, from
(seed, request, position) as in a plain step. ``verify`` counts the drafts that equal the sampled
tokens. ``draft`` follows where the device drafts, then ``copy``. So a draft never changes a token.
It only saves steps.

The positions of a row depend on the number of accepted drafts before it. A step may be launched
before the result of the previous one is there. Then it takes its last token, drafts and lengths
from the relay (``FutureMapDrafts``), on the device. Where the host builds the ops (CUDA, MLX:
``Device.built_by_host``), positions must be numbers at the launch. There the host waits for the
previous step before it lays the next one out. (SGLang keeps the lengths on the device, and its CUDA
kernels read them there, for upper bounds that the host knows.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

from ..core import LogitAdjustment, Result, Row
from ..devices.base import Array, Arrays, Op
from ..models.base import ForwardBatch
from ..relay.future_map_pool import FutureMapDrafts
from ..scheduler.verify import VerifyBatch, VerifyResult
from ..speculative.draft_model import Drafter
from ..speculative.lookup import Reach
from ..trace import Touch
from .recording import NOTHING, Laid, StepEdges, StepTouches, Touches
from .worker import Step, Worker

# -- A step with drafts ----------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class VerifyStep(Step):
    """A step with drafts, and the data that its ops hand to each other."""

    batch: VerifyBatch
    bound: Any = None  # its drafter's data of the batch
    num_drafts: int = 0  # drafts that its drafter makes
    found: ForwardBatch = field(init=False)  # its inputs at the positions that its pass has found
    num_accepted_tokens: Op | None = None  # of verify: tokens of each row that count, [num_reqs]
    next_draft_input: Op | None = None  # of draft: [num_reqs * k]; None: the host drafts

    @property
    def counts(self) -> range:
        """Return the places of the output buffer that hold the numbers of accepted tokens."""
        num_samples = sum(self.batch.sample_lens)
        return range(num_samples, num_samples + len(self.batch.reqs))

    @property
    def num_outputs(self) -> int:
        """Return the number of tokens, counts and drafts."""
        return self.counts.stop + self.num_drafts

    def others(self) -> Iterable[Op]:
        """Return verify and draft."""
        return [op for op in (self.num_accepted_tokens, self.next_draft_input) if op is not None]

    def split(self, result: Result) -> Result:
        """Return the three columns of the copy, which were all read as tokens."""
        values, start, stop = result.tokens, self.counts.start, self.counts.stop
        return VerifyResult(
            values[:start], result.error, result.nan_samples, result.found,
            num_accepted_tokens=values[start:stop], drafts=values[stop:],
        )  # fmt: skip


class DraftTouches(Touches):
    """Declares the memory that steps with drafts touch at most.

    With drafts in flight a row may begin anywhere in its reserved positions. All of these count as
    written, and as read: the steps before it wrote there.
    """

    def __init__(self, drafter: Drafter | None, *rest: Any) -> None:
        super().__init__(*rest)
        self.drafter = drafter

    def declare(self, step: Laid, flat: ForwardBatch) -> StepTouches:
        """Return the touches: ``verify`` writes to the relay, which also has lengths and drafts."""
        assert isinstance(step, VerifyStep)
        plain, batch = super().declare(step, flat), step.batch
        if plain is NOTHING:
            return NOTHING
        inputs, output = self.inputs(batch), f"output {step.buffer}"
        *stored, sampled = plain.sample
        draft = [inputs]
        if isinstance(self.relay, FutureMapDrafts):
            draft += self.relay.writes_drafts(batch)
        if self.drafter is not None:
            late = self.reads_late(batch)
            draft += self.drafter.touches([
                Reach(
                    row.lease.row, row.req.rid, index < batch.num_extend_reqs, index in late,
                    row.start, self.end_of(row), self.table[row.lease.row],
                )
                for index, row in enumerate(batch.rows)
            ])  # fmt: skip
        draft.append(Touch("write", output, range(step.counts.stop, step.num_outputs)))
        verify = [*stored, Touch("write", output, step.counts)]
        return plain._replace(sample=[inputs, sampled], verify=verify, draft=draft)

    def end_of(self, row: Row) -> int:
        """Return one past the last position that a row may compute."""
        return len(self.table[row.lease.row]) if None in row.ids else row.end


class VerifyWorker(Worker[VerifyStep]):
    """A worker for steps that may carry drafts; ``drafter`` is None where the host drafts."""

    step_class = VerifyStep

    def __init__(
        self, *parts: Any, drafter: Drafter | None, num_draft_tokens: int, **sizes: Any
    ) -> None:
        self.drafter, self.num_draft_tokens = drafter, num_draft_tokens
        self.outputs_per_row = 2 + 2 * num_draft_tokens
        self.touches_class = partial(DraftTouches, drafter)
        self.last: Step | None = None  # the step that was laid out last
        super().__init__(*parts, **sizes)

    def lay_out(self, step: VerifyStep, previous: Step | None = None) -> None:
        """Lay a step out. Where the host builds the ops, wait for the step before."""
        batch, device, last = step.batch, self.device, self.last
        if device.built_by_host and last is not None and any(batch.start_unknown):
            device.recorder.mark("wait", step=batch.step, reason="speculation", op="forward")
            last.result()  # then lengths, tokens and drafts are in the relay; if it has
            # failed, the relay has older ones, which ``resolve_starts`` bounds
        self.last = step
        step.bound = self.drafter.bind(batch) if self.drafter else None
        step.num_drafts = len(batch.reqs) * self.num_draft_tokens if self.drafter else 0
        super().lay_out(step, previous)

    # -- the ops: forward, sample, verify, draft, copy

    def launch_forward(self, step: VerifyStep) -> None:
        """Queue the forward pass."""
        step.logits_output = self.queue(
            step, "forward", self.find_and_forward, step.inputs, step.edges, step,
            on=self.forward_stream, cost=self.cost.forward_rows(step.inputs.extents),
            touches=step.touches.forward,
        )  # fmt: skip
        if step.edges is not None:
            self.token_edges.launched(step.edges, step.logits_output)

    def find_and_forward(
        self, inputs: ForwardBatch, edges: StepEdges | None, step: VerifyStep
    ) -> Array:
        """Find the positions of the rows, and return logits [num_logits, vocab], on the device."""
        if len(inputs.table_index):
            self.page_table[inputs.table_index] = inputs.table_slots
        if any(step.batch.start_unknown):
            inputs = resolve_starts(self, inputs, step.batch.start_unknown, step.batch.room)
        ids = self.relay.resolve_future(inputs.ids, None)
        step.found = inputs = replace(inputs, ids=ids)
        if edges is not None:
            self.token_edges.took(edges, inputs.ids)
        return self.model.forward(inputs, inputs.ids, self.page_table)

    def launch_sample(self, step: VerifyStep) -> None:
        """Queue sampling and verifying, and drafting where the device drafts."""
        adjustments = self.sample_inputs(step).adjustments
        step.next_token_ids = self.queue(
            step, "sample", self.sample_found, step.logits_output, step, adjustments,
            on=self.sample_stream, cost=self.cost.sample, touches=step.touches.sample,
        )  # fmt: skip
        step.num_accepted_tokens = last = self.queue(
            step, "verify", self.verify, step.next_token_ids, step,
            on=self.sample_stream, cost=self.cost.verify,
            touches=step.touches.verify,
        )  # fmt: skip
        if self.drafter is not None:
            step.next_draft_input = last = self.queue(
                step, "draft", self.draft, step.next_token_ids, step.num_accepted_tokens, step,
                on=self.sample_stream, cost=self.drafter.cost(self.cost),
                touches=step.touches.draft, mode="draft extend",
            )  # fmt: skip
        self.copy_stream.wait(last)

    def sample_found(
        self, logits: Array, step: VerifyStep, adjustments: list[LogitAdjustment | None]
    ) -> Array:
        """Return a token for each place, on the device; ``verify`` counts those that are valid."""
        inputs = replace(step.found, adjustments=adjustments)
        return self.choose(logits, inputs, step.buffer)

    def verify(self, tokens: Array, step: VerifyStep) -> Array:
        """Return how many tokens of each row count, [num_reqs], on the device.

        The newest of them goes to the relay.
        """
        inputs, relay, xp = step.found, self.relay, self.device.xp
        accepted = count_accepted(xp, inputs, tokens)
        firsts = list(accumulate(inputs.sample_lens, initial=0))[:-1]
        at = xp.asarray(firsts) + accepted - 1  # each row's newest token
        relay.store_to_map(inputs.future_slots, tokens[at])
        if isinstance(relay, FutureMapDrafts):
            before = xp.asarray([inputs.sampling[first][2] for first in firsts])
            relay.stash_lens(inputs.rows, before + accepted)
        start = len(inputs.sampling)
        self.outputs[step.buffer][start : start + len(inputs.rows)] = accepted
        return accepted

    def draft(self, tokens: Array, accepted: Array, step: VerifyStep) -> Array:
        """Return drafts for the next step, [num_reqs * k], on the device."""
        inputs, relay = step.found, self.relay
        assert self.drafter is not None
        guesses = self.drafter.draft(inputs, step.bound, tokens, accepted, self.page_table)
        if isinstance(relay, FutureMapDrafts):
            relay.stash_drafts(inputs.rows, guesses)
        start = len(inputs.sampling) + len(inputs.rows)
        self.outputs[step.buffer][start : start + len(guesses)] = guesses
        return guesses

    def launch_copy(self, step: VerifyStep) -> None:
        """Queue the copy of all three columns."""
        source = step.next_draft_input or step.num_accepted_tokens
        assert source is not None
        step.copy_done = self.queue(
            step, "copy", self.copy, step.buffer, step.num_outputs,
            on=self.copy_stream, cost=self.cost.copy, touches=step.touches.copy,
            after=("copy", source),
        )  # fmt: skip

    def keep_edges(self, step: VerifyStep, edges: StepEdges) -> None:
        """Record that ``verify`` leaves each token in the relay."""
        if step.next_token_ids and step.num_accepted_tokens and step.copy_done:
            self.token_edges.sampled(
                edges, step.next_token_ids, step.num_accepted_tokens, step.copy_done
            )


# -- Computed by the ops ---------------------------------------------------------------------------


def resolve_starts(
    worker: Worker[Any], inputs: ForwardBatch, start_unknown: Sequence[bool], room: Sequence[int]
) -> ForwardBatch:
    """Return the step at the true positions of its rows, on the device.

    The step before has left them in the relay. If that step failed, the relay has other numbers.
    Then the row has no use, but it must write neither outside its request's memory nor into a
    shared prefix.
    """
    assert isinstance(worker.relay, FutureMapDrafts)
    starts = list(inputs.prefix_lens)
    hidden = [row for row, unknown in enumerate(start_unknown) if unknown]
    real = worker.relay.start_of([inputs.rows[row] for row in hidden]).tolist()
    for row, start in zip(hidden, real, strict=True):
        starts[row] = max(starts[row], min(start, room[row] - inputs.extend_lens[row]))
    return at_starts(inputs, starts, worker.device.xp)


def at_starts(inputs: ForwardBatch, starts: list[int], xp: Arrays) -> ForwardBatch:
    """Return the step with its rows at other positions, where its tokens are also sampled."""
    moved = [new - old for new, old in zip(starts, inputs.prefix_lens, strict=True)]
    shift_token = [by for by, n in zip(moved, inputs.extend_lens, strict=True) for _ in range(n)]
    shift_sample = [by for by, n in zip(moved, inputs.sample_lens, strict=True) for _ in range(n)]
    padding = [0] * (len(inputs.ids) - len(shift_token))
    sampling = [
        (params, key, position + by)
        for (params, key, position), by in zip(inputs.sampling, shift_sample, strict=True)
    ]
    positions = inputs.positions + xp.asarray(shift_token + padding)
    return replace(inputs, prefix_lens=starts, positions=positions, sampling=sampling)


def count_accepted(xp: Arrays, inputs: ForwardBatch, tokens: Array) -> Array:
    """Return 1 plus the number of drafts that equal the sampled tokens, [num_reqs], on the device.

    From the inputs [last, d1, .., dk] of a row the target made [t0, .., tk]: d1 counts if it is t0.
    """
    ids, width = inputs.ids, max(inputs.sample_lens) - 1
    ends, samples = accumulate(inputs.extend_lens), accumulate(inputs.sample_lens)
    draft_at, target_at, is_draft = list[int](), list[int](), list[bool]()
    for end, sampled, count in zip(ends, samples, inputs.sample_lens, strict=True):
        padding = [0] * (width - count + 1)  # a row may have fewer drafts than another
        draft_at += [*range(end - count + 1, end), *padding]
        target_at += [*range(sampled - count, sampled - 1), *padding]
        is_draft += [True] * (count - 1) + [False] * len(padding)
    at, none = xp.asarray(draft_at), xp.asarray([-1] * len(draft_at))
    drafts = xp.where(xp.mask(is_draft), ids[at], none)
    return xp.count_equal(drafts, tokens[xp.asarray(target_at)], width, len(inputs.rows))
