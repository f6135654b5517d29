"""Steps that carry drafts: verify them, say how many count, and draft for the step behind.

(SGLang ``speculative/``, vLLM ``v1/spec_decode/``.) A step is up to five ops: ``forward`` over the
last token of each row and the drafts behind it; ``sample`` at each of these places, from (seed,
request, position) as ever; ``verify``, which counts the drafts that are what was sampled;
``draft``, where the device drafts; ``copy``. So a draft never changes a token, it only saves a
step.

How far a row comes depends on how many drafts count. A step that is launched before the one in
front of it has come back takes its last token, its drafts and its lengths from the relay
(``FutureMapPool``), on the device. Where the ops are built by the host (CUDA, MLX:
``Device.built_by_host``) positions must be numbers when a step is launched: so there the host waits
for the step in front before it lays the next one out. (SGLang keeps the lengths on the device and
has CUDA kernels that read them there, for upper bounds that the host knows.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

from ..core import Result, Row, ScheduleBatch
from ..devices.base import Array, Arrays
from ..models.base import ForwardBatch, ModelWorkerBatch
from ..speculative.draft_model import Drafter
from ..speculative.lookup import Reach
from ..trace import Touch
from .recording import NOTHING, StepEdges, StepTouches, Touches
from .worker import COPY, FORWARD, SAMPLE, Recipe, Step, StepOp, Worker, sample

# -- The host: how a step is laid out, and what it waits for where it builds the ops ---------------


@dataclass
class Drafts:
    """What the ops of one step tell each other: where its rows begin, found out by the first."""

    room: Sequence[int]  # [num_reqs] positions for which each row has memory
    bound: Any  # what its drafter must be told of it
    inputs: ForwardBatch = field(init=False)  # the step as its forward pass has found it


class DraftTouches(Touches):
    """What steps with drafts touch at most.

    A row whose drafts before it are in flight may begin anywhere in what was reserved for it. All
    of that counts as written; so does what it may read there, which the steps before it wrote.
    """

    def __init__(self, drafter: Drafter | None, *rest: Any) -> None:
        super().__init__(*rest)
        self.drafter = drafter

    def declare(self, batch: ScheduleBatch, flat: ModelWorkerBatch) -> StepTouches:
        """The relay learns the newest token when it is verified; lengths and drafts it has too."""
        plain = super().declare(batch, flat)
        if plain is NOTHING:
            return NOTHING
        inputs = self.inputs(batch)
        draft = [inputs, *self.relay.writes_drafts(batch)]
        if self.drafter is not None:
            late = self.reads_late(batch)
            draft += self.drafter.touches([
                Reach(
                    row.lease.row, row.req.rid, index < batch.num_extend_reqs, index in late,
                    row.start, self.end_of(row), self.table[row.lease.row],
                )
                for index, row in enumerate(batch.rows)
            ])  # fmt: skip
        return StepTouches(plain.forward, [inputs], plain.sample, draft)

    def end_of(self, row: Row) -> int:
        """One past the last position that a row may compute."""
        return len(self.table[row.lease.row]) if None in row.ids else row.end


class Speculation:
    """The host's part of it; ``drafter`` is None where the host drafts as well."""

    def __init__(self, num_draft_tokens: int, drafter: Drafter | None = None) -> None:
        self.num_draft_tokens, self.drafter = num_draft_tokens, drafter
        self.in_front: Step | None = None  # the step that was laid out last

    @property
    def parts(self) -> dict[str, Any]:
        """What a worker is made of that speculates."""
        return {
            "recipe": verify_recipe(self.drafter),
            "begin": self.begin,
            "outputs_per_row": 2 + 2 * self.num_draft_tokens,
            "make_touches": partial(DraftTouches, self.drafter),
        }

    def begin(self, worker: Worker, step: Step) -> None:
        """Host: a step is laid out. Where it builds the ops, it waits for the one in front."""
        batch, device, in_front = step.batch, worker.device, self.in_front
        if device.built_by_host and in_front is not None and any(batch.start_unknown):
            device.recorder.mark("wait", step=batch.step, reason="speculation", op="forward")
            in_front.result()  # then lengths, tokens and drafts are in the relay; if it has
            # failed, others are, which ``resolve_starts`` bounds
        self.in_front = step
        room = [len(lease.pages) * worker.page_size for lease in batch.leases]
        step.extra = Drafts(room, self.drafter.bind(batch) if self.drafter else None)
        num_drafts = len(batch.reqs) * self.num_draft_tokens if self.drafter is not None else 0
        step.num_outputs = counts(step).stop + num_drafts


# -- The ops: forward, sample, verify, draft -------------------------------------------------------


def forward(worker: Worker, inputs: ForwardBatch, edges: StepEdges | None, drafts: Drafts) -> Array:
    """Device: find out where rows begin, and compute logits [num_logits, vocab]."""
    if len(inputs.table_index):
        worker.page_table[inputs.table_index] = inputs.table_slots
    if any(inputs.start_unknown):
        inputs = resolve_starts(worker, inputs, drafts.room)
    drafts.inputs = inputs = replace(inputs, ids=worker.relay.resolve_future(inputs.ids, None))
    if edges is not None:
        worker.token_edges.took(edges, inputs.ids)
    return worker.model.forward(inputs, inputs.ids, worker.page_table)


def resolve_starts(worker: Worker, inputs: ForwardBatch, room: Sequence[int]) -> ForwardBatch:
    """Device: the step at the positions where its rows really begin.

    The step before has left them in the relay. If that one failed, something else is there. Then
    the row is nobody's, but it must not write where its request has no memory, nor into a prefix
    that others read.
    """
    starts = list(inputs.prefix_lens)
    hidden = [row for row, unknown in enumerate(inputs.start_unknown) if unknown]
    real = worker.relay.start_of([inputs.rows[row] for row in hidden]).tolist()
    for row, start in zip(hidden, real, strict=True):
        starts[row] = max(starts[row], min(start, room[row] - inputs.extend_lens[row]))
    return at_starts(inputs, starts, worker.device.xp)


def at_starts(inputs: ForwardBatch, starts: list[int], xp: Arrays) -> ForwardBatch:
    """The same step with its rows at other positions, where its tokens are also sampled."""
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


def verify(worker: Worker, tokens: Array, drafts: Drafts, dests: Array, buffer: int) -> Array:
    """Device: how many tokens of each row count, [num_reqs]; the relay learns the newest."""
    inputs, relay, xp = drafts.inputs, worker.relay, worker.device.xp
    accepted = count_accepted(xp, inputs, tokens)
    firsts = list(accumulate(inputs.sample_lens, initial=0))[:-1]
    at = xp.asarray(firsts) + accepted - 1  # each row's newest token
    relay.store_to_map(dests, tokens[at])
    if relay.run_ahead:
        before = xp.asarray([inputs.sampling[first][2] for first in firsts])
        relay.stash_lens(inputs.rows, before + accepted)
    start = len(inputs.sampling)
    worker.outputs[buffer][start : start + len(inputs.rows)] = accepted
    return accepted


def draft(
    drafter: Drafter, worker: Worker, tokens: Array, accepted: Array, drafts: Drafts, buffer: int
) -> Array:
    """Device: drafts for the step behind this one, [num_reqs * k]."""
    inputs, relay = drafts.inputs, worker.relay
    guesses = drafter.draft(inputs, drafts.bound, tokens, accepted, worker.page_table)
    relay.stash_drafts(inputs.rows, guesses)
    start = len(inputs.sampling) + len(inputs.rows)
    worker.outputs[buffer][start : start + len(guesses)] = guesses
    return guesses


def count_accepted(xp: Arrays, inputs: ForwardBatch, tokens: Array) -> Array:
    """Device: 1 and the drafts that are what was sampled in their place, [num_reqs].

    Of the inputs [last, d1, .., dk] of a row the target made [t0, .., tk]: d1 is right if it is t0.
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


# -- The recipe, and what the host makes of the copy: tokens, how many count, drafts ---------------


def counts(step: Step) -> range:
    """Where in its output buffer it is said how many tokens count."""
    num_samples = sum(step.batch.sample_lens)
    return range(num_samples, num_samples + len(step.batch.reqs))


def tell_apart(step: Step, result: Result) -> Result:
    """Host: the three columns of the copy, which were all read as tokens."""
    values, start, stop = result.tokens, counts(step).start, counts(step).stop
    accepted, drafts = values[start:stop], values[stop:]
    return replace(result, tokens=values[:start], num_accepted_tokens=accepted, drafts=drafts)


def verify_recipe(drafter: Drafter | None = None) -> Recipe:
    """Forward, sample, verify, and draft where the device does that; then copy all three."""
    ops = [
        replace(FORWARD, run=forward, takes=("inputs", "edges", "extra")),
        replace(
            SAMPLE,
            run=lambda worker, logits, drafts, *rest: sample(worker, logits, drafts.inputs, *rest),
            takes=("logits_output", "extra", "adjustments", "buffer"),
            awaited_by="",
            cost=lambda worker, step: worker.cost.sample,
        ),
        StepOp(
            "verify",
            verify,
            takes=("next_token_ids", "extra", "future_indices", "buffer"),
            gives="num_accepted_tokens",
            awaited_by="copy" if drafter is None else "",
            cost=lambda worker, step: worker.cost.verify,
            touches=lambda worker, step: [
                *step.touches.verify,
                Touch("write", f"output {step.buffer}", counts(step)),
            ],
        ),
    ]
    if drafter is not None:
        drafts = StepOp(
            "draft",
            partial(draft, drafter),
            takes=("next_token_ids", "num_accepted_tokens", "extra", "buffer"),
            gives="next_draft_input",
            awaited_by="copy",
            cost=lambda worker, step: drafter.cost(worker.cost),
            touches=lambda worker, step: [
                *step.touches.draft,
                Touch("write", f"output {step.buffer}", range(counts(step).stop, step.num_outputs)),
            ],
            mode="draft extend",
        )
        ops.append(drafts)
    return (*ops, replace(COPY, edge=("copy", ops[-1].gives), read=tell_apart))
