"""Which rows of a batch attend together: neighbours that compute equally many positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

TOGETHER = 32  # positions; rows that compute more fill a kernel alone, and need the memory


class Run(NamedTuple):
    """Neighbouring rows of a batch with one extent, and where in it their tokens lie."""

    rows: slice  # of the batch's rows
    tokens: slice  # of the flat batch
    extend_len: int  # positions that each row computes


def equal_extents(extend_lens: Sequence[int]) -> Iterator[Run]:
    """The runs of a batch, in order: all rows of a decode, and of a verify step with its drafts.

    Rows that compute more than ``TOGETHER`` positions, which only prompts do, attend one by one.
    """
    row = token = 0
    for extend_len, group in groupby(extend_lens):
        alone = extend_len > TOGETHER
        count = len(list(group))
        for size in [1] * count if alone else [count]:
            end = token + size * extend_len
            yield Run(slice(row, row + size), slice(token, end), extend_len)
            row, token = row + size, end
