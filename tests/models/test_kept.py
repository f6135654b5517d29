"""What top-k and top-p leave is the same on every device, also where it depends on the last bit."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import SamplingParams
from minisched.models import sampling, sampling_mlx, sampling_torch
from tests.support import many

DTYPES = [torch.bfloat16, torch.float32, torch.float64]


def reference(logits: list[float], params: SamplingParams) -> set[int]:
    return set(sampling.kept([logit / params.temperature for logit in logits], params))


def on_torch(
    logits: torch.Tensor, params: list[SamplingParams], on_gpu: bool, first_look: int
) -> list[set[int]]:
    """As ``sampling_torch.choose`` asks, on a CPU or as on a GPU."""
    vocab_size = logits.size(-1)
    limits = [p.top_k if 0 < p.top_k < vocab_size else vocab_size for p in params]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling_torch, "FIRST_LOOK", first_look)
        width, enough = sampling_torch.look_at(params, limits, vocab_size, on_gpu)
    if not width:
        return [set(range(vocab_size))] * len(params)
    column = partial(torch.tensor, dtype=torch.float64)
    temperature = column([p.temperature for p in params])[:, None]
    top_p = column([p.top_p for p in params])[:, None]
    left = sampling_torch.kept(
        logits, logits.double() / temperature, temperature, torch.tensor(limits)[:, None], top_p,
        width, enough,
    )  # fmt: skip
    return [set(row.nonzero()[:, 0].tolist()) for row in left]


def on_mlx(logits: torch.Tensor, params: list[SamplingParams]) -> list[set[int]]:
    with mx.stream(mx.cpu):
        temperature = sampling_mlx.column([p.temperature for p in params], mx.float64)
        scaled = mx.array(logits.double().numpy(), dtype=mx.float64) / temperature
        left = sampling_mlx.kept(scaled, params).tolist()
    return [{at for at, stays in enumerate(row) if stays} for row in left]


@st.composite
def at_the_boundary(draw: st.DrawFn) -> tuple[torch.Tensor, list[SamplingParams]]:
    """Rows whose top-p is a share that some of their tokens have exactly; many are equal."""
    dtype, vocab = draw(st.sampled_from(DTYPES)), draw(st.integers(2, 300))
    values = st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=4)
    rows, params = [], []
    for _ in range(draw(st.integers(1, 4))):
        kinds = draw(values)
        rows.append([kinds[hash((at, len(rows))) % len(kinds)] for at in range(vocab)])
        temperature = draw(st.sampled_from([1.0, 0.7, 1.3]))
        logits = torch.tensor([rows[-1]], dtype=dtype).double()
        falling = (logits / temperature).sort(descending=True).values
        reached = sampling_torch.whole_numbers(falling, falling)[0].cumsum(-1)
        share = float(reached[draw(st.integers(0, vocab - 1))] / reached[-1])
        top_p = draw(st.sampled_from([share, math.nextafter(share, 0), math.nextafter(share, 1)]))
        top_k = draw(st.sampled_from([-1, -1, 1, 3, vocab // 2 + 1, vocab + 5]))
        top_p = draw(st.sampled_from([top_p, top_p, top_p, 1.0]))
        params.append(SamplingParams(temperature, top_k, min(max(top_p, 1e-9), 1.0)))
    return torch.tensor(rows, dtype=dtype), params


@given(
    case=at_the_boundary(), on_gpu=st.booleans(), first_look=st.sampled_from([1, 2, 5, 40, 1024])
)
@settings(max_examples=many(40, 250))
def test_every_device_leaves_what_the_reference_leaves(
    case: tuple[torch.Tensor, list[SamplingParams]], on_gpu: bool, first_look: int
) -> None:
    logits, params = case
    truth = [reference(*row) for row in zip(logits.tolist(), params, strict=True)]
    assert on_torch(logits, params, on_gpu, first_look) == truth
    alone = zip(logits[:, None], params, strict=True)
    assert [on_torch(row, [p], on_gpu, first_look)[0] for row, p in alone] == truth
    assert on_mlx(logits, params) == truth


@pytest.mark.parametrize(
    ("wishes", "on_gpu", "found"),
    [
        ([{}], True, (0, True)),
        ([{"top_k": 20, "top_p": 0.9}, {"top_k": 50}], True, (50, True)),
        ([{"top_k": 20}, {"top_p": 0.9}], True, (9000, True)),
        ([{"top_k": 2000}, {"top_p": 0.9}], False, (2000, False)),
        ([{"top_k": 9999}, {"top_p": 1.0}], False, (0, True)),
    ],
)
def test_no_more_is_put_in_order_than_somebody_wants(
    wishes: list[dict[str, Any]], on_gpu: bool, found: tuple[int, bool]
) -> None:
    params = [SamplingParams(1.0, **wish) for wish in wishes]
    limits = [min(p.top_k, 9000) if p.top_k > 0 else 9000 for p in params]
    assert sampling_torch.look_at(params, limits, 9000, on_gpu) == found
