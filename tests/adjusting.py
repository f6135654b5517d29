"""Logits to adjust, wishes to adjust them by, and each backend's way to do it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import torch
from hypothesis import strategies as st

from minisched.core import LogitAdjustment, SamplingParams
from minisched.models import adjust as lists
from minisched.models import adjust_mlx, adjust_torch, sampling, sampling_mlx, sampling_torch

Rows = list[list[float]]
Wishes = list[LogitAdjustment | None]
Sampling = Sequence[tuple[SamplingParams, int, int]]


def adjusted(backend: str, logits: Rows, wishes: Wishes, wide: bool = True) -> Rows:
    """What a backend makes of logits, in 64 bits or in 32."""
    if backend == "sim":
        return lists.adjust(logits, wishes)
    if backend == "thread":
        dtype = torch.float64 if wide else torch.float32
        rows: Any = adjust_torch.adjust(torch.tensor(logits, dtype=dtype), wishes)
    else:
        with mx.stream(mx.cpu):
            dtype = mx.float64 if wide else mx.float32
            rows = adjust_mlx.adjust(mx.array(logits, dtype=dtype), wishes)
    found: Rows = rows.tolist()
    return found


def chosen(backend: str, logits: Rows, wishes: Wishes, how: Sampling) -> list[int]:
    """The tokens that a backend chooses from them."""
    rows = adjusted(backend, logits, wishes)
    if backend == "sim":
        return [sampling.choose(row, *one) for row, one in zip(rows, how, strict=True)]
    if backend == "thread":
        tokens: Any = sampling_torch.choose(torch.tensor(rows, dtype=torch.float64), how)
    else:
        with mx.stream(mx.cpu):
            tokens = sampling_mlx.sample(mx.array(rows, dtype=mx.float64), how)
    found: list[int] = tokens.tolist()
    return found


@st.composite
def cases(draw: st.DrawFn, masks: bool = True) -> tuple[Rows, Wishes]:
    """A few rows of logits, each with a wish or without one; vocabularies of awkward sizes."""
    vocab_size = draw(st.sampled_from([1, 2, 7, 8, 9, 19, 33]))
    logit = st.floats(-20, 20, width=32)
    rows = draw(st.lists(st.lists(logit, min_size=vocab_size, max_size=vocab_size), min_size=1,
                         max_size=4))  # fmt: skip
    wishes = [draw(st.none() | wishes_for(vocab_size, masks)) for _ in rows]
    return rows, wishes


def wishes_for(vocab_size: int, masks: bool = True) -> st.SearchStrategy[LogitAdjustment]:
    """Any wish; a mask may be shorter than the vocabulary, or longer, or let nothing pass."""
    tokens = st.integers(0, vocab_size - 1)
    return st.builds(
        LogitAdjustment,
        repetition_penalty=st.sampled_from([1.0, 1.3, 0.7, 2.0]),
        frequency_penalty=st.sampled_from([0.0, 0.1, -1.7, 2.0]),
        presence_penalty=st.sampled_from([0.0, 0.3, -2.0]),
        seen=st.frozensets(tokens, max_size=5),
        counts=st.dictionaries(tokens, st.integers(1, 4), max_size=5),
        logit_bias=st.dictionaries(tokens, st.floats(-100, 100), max_size=3),
        vocab_mask=st.none() | st.binary(max_size=8) if masks else st.none(),
    )
