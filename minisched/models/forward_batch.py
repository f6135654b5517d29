"""The batch as the device wants it: flat arrays instead of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import Batch, ForwardMode, SamplingParams
from ..devices.base import Array, Arrays, Label


@dataclass(frozen=True)
class ForwardBatch:
    """One step's input (SGLang ``model_executor/forward_batch_info.py``).

    Tokens lie flat, row after row, padded to a multiple of the model's ``pad_to`` with tokens of
    row 0 at position 0; a model that asks for padding must not write its KV. Lists are on the
    host, arrays on the device.
    """

    label: Label
    is_decode: bool
    num_tokens: int  # without padding
    rows: list[int]  # [num_reqs] row of the request table
    prefix_lens: list[int]  # [num_reqs] positions computed before this step
    extend_lens: list[int]  # [num_reqs] positions computed in this step
    sampling: list[tuple[SamplingParams, int, int]]  # [num_reqs] (params, key, position)
    ids: Array  # [num_tokens] tokens; negative: where the relay finds them
    positions: Array  # [num_tokens] position of each token
    token_rows: Array  # [num_tokens] row of each token
    last: Array  # [num_reqs] index of each row's last token
    table_index: Array  # [num_new] page-table cells to fill before the forward
    table_slots: Array  # [num_new] the KV slots that go there
    dests: Array  # [num_reqs] where the relay keeps the sampled tokens


def make_forward_batch(
    batch: Batch, ids: Sequence[int], dests: Sequence[int], xp: Arrays, max_len: int, pad_to: int
) -> ForwardBatch:
    """Lay a batch out flat and ship it. Everything is read from the rows, nothing from requests."""
    rows = [row.lease.row for row in batch.rows]
    extend_lens = [row.extend_len for row in batch.rows]
    positions = [position for row in batch.rows for position in range(row.start, row.end)]
    token_rows = [row.lease.row for row in batch.rows for _ in row.ids]
    padding = [0] * (-len(positions) % pad_to)
    ends = [sum(extend_lens[: index + 1]) for index in range(len(rows))]
    cells = [
        (row.lease.row * max_len + row.slots_at + at, slot)
        for row in batch.rows
        for at, slot in enumerate(row.new_slots)
    ]
    return ForwardBatch(
        label=Label(batch.step, batch.mode.value, batch.rids),
        is_decode=batch.mode is ForwardMode.DECODE,
        num_tokens=len(positions),
        rows=rows,
        prefix_lens=[row.start for row in batch.rows],
        extend_lens=extend_lens,
        sampling=[(row.req.params, row.req.sampling_key, row.end) for row in batch.rows],
        ids=xp.asarray([*ids, *padding]),
        positions=xp.asarray(positions + padding),
        token_rows=xp.asarray(token_rows + padding),
        last=xp.asarray([end - 1 for end in ends]),
        table_index=xp.asarray([cell for cell, _ in cells]),
        table_slots=xp.asarray([slot for _, slot in cells]),
        dests=xp.asarray(list(dests)),
    )
