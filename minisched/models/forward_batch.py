"""The batch as the device wants it: arrays on the device, beside what the host needs to launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import NoneType

from ..core import ForwardMode, LogitAdjustment, ModelWorkerBatch, SamplingParams
from ..core.residence import on_device, on_host
from ..devices.base import Array, Arrays, Label
from .logprob_info import LogprobInfo, logit_lens_of, make_logprob_info


@dataclass(frozen=True)
class ForwardBatch:
    """One step's input (SGLang ``model_executor/forward_batch_info.py``).

    Tokens lie flat, row after row, padded to a multiple of the model's ``pad_to`` with tokens of
    row 0 at position 0; a model that asks for padding must not write its KV.
    """

    label: Label = on_host()
    is_decode: bool = on_host()
    num_tokens: int = on_host()  # without padding
    rows: list[int] = on_host("[num_reqs]")  # row of the request table
    prefix_lens: list[int] = on_host("[num_reqs]")  # positions computed before this step
    extend_lens: list[int] = on_host("[num_reqs]")  # positions computed in this step
    logit_lens: list[int] = on_host("[num_reqs]")  # of how many last positions logits are wanted
    sample_lens: list[int] = on_host("[num_reqs]")  # after how many of them a token is sampled
    sampling: list[tuple[SamplingParams, int, int]] = on_host("[num_samples]")  # with key, position
    ids: Array = on_device("[num_tokens]")  # tokens; negative: where the relay finds them
    positions: Array = on_device("[num_tokens]")  # position of each token
    token_rows: Array = on_device("[num_tokens]")  # row of each token
    last: Array = on_device("[num_reqs]")  # index of each row's last token
    logits_at: Array = on_device("[num_logits]")  # index of each token whose logits are wanted
    table_index: Array = on_device("[num_new_slots]")  # page-table cells to fill first
    table_slots: Array = on_device("[num_new_slots]")  # the KV slots that go there
    dests: Array = on_device("[num_reqs]")  # where the relay keeps the sampled tokens
    adjustments: list[LogitAdjustment | None] = on_host("[num_samples]", list)  # or none at all
    start_unknown: list[bool] = on_host("[num_reqs]", list)  # only the device has prefix_lens
    logprobs: LogprobInfo | None = on_host("one", NoneType)  # None: nobody wants any

    @property
    def extents(self) -> Iterator[tuple[int, int]]:
        """First new position and new positions of each row, which decide what a pass costs."""
        return zip(self.prefix_lens, self.extend_lens, strict=True)


def make_forward_batch(batch: ModelWorkerBatch, xp: Arrays, pad_to: int) -> ForwardBatch:
    """Ship a batch (SGLang's ``ForwardBatch.init_new``)."""
    rows, lens = batch.req_pool_indices, batch.extend_seq_lens
    starts = batch.extend_prefix_lens
    positions = [
        position
        for start, length in zip(starts, lens, strict=True)
        for position in range(start, start + length)
    ]
    token_rows = [row for row, length in zip(rows, lens, strict=True) for _ in range(length)]
    padding = [0] * (-len(positions) % pad_to)
    ends = list(accumulate(lens))
    wanted = logit_lens_of(batch)
    ids, at, of_row, last, index, slots, dests, *others = xp.asarrays(
        batch.input_ids + padding,
        positions + padding,
        token_rows + padding,
        [end - 1 for end in ends],
        batch.table_index,
        batch.table_slots,
        batch.dests,
        *([] if sum(wanted) == len(wanted) else [last_of(ends, wanted)]),
    )
    return ForwardBatch(
        label=Label(batch.step, batch.forward_mode.value, batch.rids),
        is_decode=batch.forward_mode is ForwardMode.DECODE,
        num_tokens=len(positions),
        rows=rows,
        prefix_lens=starts,
        extend_lens=lens,
        logit_lens=wanted,
        sample_lens=batch.sample_lens,
        sampling=batch.sampling_info,
        ids=ids,
        positions=at,
        token_rows=of_row,
        last=last,
        logits_at=others[0] if others else last,
        table_index=index,
        table_slots=slots,
        dests=dests,
        start_unknown=batch.start_unknown,
        logprobs=make_logprob_info(batch, wanted, xp),
    )


def at_starts(inputs: ForwardBatch, starts: list[int], xp: Arrays) -> ForwardBatch:
    """The same step with its rows at other positions, where its tokens are also sampled."""
    moved = [new - old for new, old in zip(starts, inputs.prefix_lens, strict=True)]
    shift_token = [by for by, length in zip(moved, inputs.extend_lens, strict=True)
                   for _ in range(length)]  # fmt: skip
    shift_sample = [by for by, n in zip(moved, inputs.sample_lens, strict=True) for _ in range(n)]
    padding = [0] * (len(inputs.ids) - len(shift_token))
    sampling = [
        (params, key, position + by)
        for (params, key, position), by in zip(inputs.sampling, shift_sample, strict=True)
    ]
    positions = xp.add(inputs.positions, xp.asarray(shift_token + padding))
    return replace(inputs, prefix_lens=starts, positions=positions, sampling=sampling)


def last_of(ends: Sequence[int], counts: Sequence[int]) -> list[int]:
    """The last ``counts`` indices before each of ``ends``, row after row."""
    return [at for end, n in zip(ends, counts, strict=True) for at in range(end - n, end)]
