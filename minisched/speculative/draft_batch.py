"""The batches that a draft model runs, made of the step that its target has just run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ..core import ForwardMode, ModelWorkerBatch, SamplingParams
from ..devices.base import Array, Arrays
from ..models.forward_batch import ForwardBatch, make_forward_batch

GREEDY = (SamplingParams(), 0, 0)


def draft_batch(
    step: ForwardBatch,
    mode: ForwardMode,
    prefix_lens: list[int],
    extend_lens: list[int],
    xp: Arrays,
    pad_to: int,
) -> ForwardBatch:
    """The step's rows at other positions, with one greedy token a row."""
    num_reqs = len(step.rows)
    flat = ModelWorkerBatch(
        step=step.label.step,
        forward_mode=mode,
        rids=step.label.rids,
        input_ids=[0] * sum(extend_lens),
        dests=[],
        req_pool_indices=step.rows,
        extend_prefix_lens=prefix_lens,
        extend_seq_lens=extend_lens,
        sample_lens=[1] * num_reqs,
        sampling_info=[GREEDY] * num_reqs,
        start_unknown=[False] * num_reqs,
        table_index=[],
        table_slots=[],
    )
    return make_forward_batch(flat, xp, pad_to)


def extend_batch(
    step: ForwardBatch, tokens: Array, num_accepted: Array, xp: Arrays, pad_to: int
) -> ForwardBatch:
    """DRAFT_EXTEND: what each row has settled, with logits after its newest token.

    A row that computed inputs at p .. p + e - 1 and chose g tokens, of which a count, now runs
    over p .. p + e: its inputs up to the first that was sampled after (a whole prompt, or only
    the last token where the others were drafts), and then the g tokens. Those behind the a-th are
    rejected and only there to fill the shape; no logits are taken after them.
    """
    lens = [length + 1 for length in step.extend_lens]
    inputs = draft_batch(step, ForwardMode.DRAFT_EXTEND, step.prefix_lens, lens, xp, pad_to)
    ends = accumulate(lens)
    settled = [end - count - 1 for end, count in zip(ends, step.sample_lens, strict=True)]
    return replace(
        inputs,
        ids=settled_ids(step, tokens, xp, len(inputs.ids)),
        logits_at=xp.add(xp.asarray(settled), num_accepted),
    )


def settled_ids(step: ForwardBatch, tokens: Array, xp: Arrays, padded: int) -> Array:
    """The input tokens of ``extend_batch``, [padded]."""
    is_chosen: list[bool] = []
    at_id: list[int] = []
    at_token: list[int] = []
    first = token = 0
    for length, count in zip(step.extend_lens, step.sample_lens, strict=True):
        given = length - count + 1
        is_chosen += [False] * given + [True] * count
        at_id += [*range(first, first + given), *[0] * count]
        at_token += [*[0] * given, *range(token, token + count)]
        first, token = first + length, token + count
    padding = [0] * (padded - len(at_id))
    return xp.where(
        xp.mask(is_chosen + [False] * len(padding)),
        tokens[xp.asarray(at_token + padding)],
        step.ids[xp.asarray(at_id + padding)],
    )


def decode_batch(
    step: ForwardBatch,
    nth: int,
    drafts: Array,
    num_accepted: Array,
    xp: Arrays,
    pad_to: int,
    limit: int,
) -> ForwardBatch:
    """DECODE: each row's ``nth`` draft (from 1 on), which stands ``nth`` behind its newest token.

    Only the device knows where that is; the host knows how far it can be. ``limit`` is where
    positions end: a draft there or beyond will never be verified, and stays at the last one.
    """
    columns = list(zip(step.prefix_lens, step.extend_lens, step.sample_lens, strict=True))
    at_most = [min(start + length + nth, limit - 1) for start, length, _ in columns]
    inputs = draft_batch(step, ForwardMode.DECODE, at_most, [1] * len(columns), xp, pad_to)
    index = padded_index(len(columns), pad_to)
    before = [start + length - count + nth for start, length, count in columns]
    positions = xp.add(xp.asarray([before[at] for at in index]), num_accepted[xp.asarray(index)])
    inside = xp.where(positions < limit, positions, xp.asarray([limit - 1] * len(index)))
    return replace(inputs, ids=drafts[xp.asarray(index)], positions=inside)


def padded_index(num_reqs: int, pad_to: int) -> Sequence[int]:
    """Each row once, and the first one again as padding."""
    return [*range(num_reqs), *[0] * (-num_reqs % pad_to)]
