"""The batch as the device wants it: arrays on the device, beside what the host needs to launch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from ..core import ForwardMode, ModelWorkerBatch, SamplingParams
from ..core.residence import on_device, on_host
from ..devices.base import Array, Arrays, Label


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
    sampling: list[tuple[SamplingParams, int, int]] = on_host("[num_reqs]")  # params, key, position
    ids: Array = on_device("[num_tokens]")  # tokens; negative: where the relay finds them
    positions: Array = on_device("[num_tokens]")  # position of each token
    token_rows: Array = on_device("[num_tokens]")  # row of each token
    last: Array = on_device("[num_reqs]")  # index of each row's last token
    table_index: Array = on_device("[num_new_slots]")  # page-table cells to fill first
    table_slots: Array = on_device("[num_new_slots]")  # the KV slots that go there
    dests: Array = on_device("[num_reqs]")  # where the relay keeps the sampled tokens


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
    return ForwardBatch(
        label=Label(batch.step, batch.forward_mode.value, batch.rids),
        is_decode=batch.forward_mode is ForwardMode.DECODE,
        num_tokens=len(positions),
        rows=rows,
        prefix_lens=starts,
        extend_lens=lens,
        sampling=batch.sampling_info,
        ids=xp.asarray(batch.input_ids + padding),
        positions=xp.asarray(positions + padding),
        token_rows=xp.asarray(token_rows + padding),
        last=xp.asarray([end - 1 for end in accumulate(lens)]),
        table_index=xp.asarray(batch.table_index),
        table_slots=xp.asarray(batch.table_slots),
        dests=xp.asarray(batch.dests),
    )
