"""What wishes do to logits: the same on every device and in every batch, and no more than that."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.checks.tokens.oracle import penalised
from minisched.core import LogitAdjustment, SamplingParams
from minisched.models import adjust, adjust_mlx, adjust_torch
from minisched.worker.sampling_info import make_adjustment
from tests.adjusting import Rows, Wishes, adjusted, cases, chosen
from tests.support import AND_CUDA


@given(
    logits=st.lists(st.floats(-20, 20), min_size=9, max_size=9),
    prompt=st.lists(st.integers(0, 8), max_size=5),
    output=st.lists(st.integers(0, 8), max_size=5),
    params=st.builds(
        SamplingParams,
        frequency_penalty=st.floats(-2, 2),
        presence_penalty=st.floats(-2, 2),
        repetition_penalty=st.floats(0.5, 2),
        logit_bias=st.dictionaries(st.integers(0, 8), st.floats(-100, 100), max_size=3),
    ),
)
def test_a_history_becomes_what_the_definition_says(
    logits: list[float], prompt: list[int], output: list[int], params: SamplingParams
) -> None:
    wish = make_adjustment(params, prompt, output, None)
    assert adjusted("sim", [logits], [wish])[0] == penalised(logits, prompt, output, params)


@AND_CUDA
@given(case=cases())
@settings(deadline=None)
def test_every_backend_does_the_same(backend: str, case: tuple[Rows, Wishes]) -> None:
    logits, wishes = case
    assert adjusted(backend, logits, wishes) == adjusted("sim", logits, wishes)


@pytest.mark.parametrize("backend", ["thread", "mlx"])
@given(case=cases())
@settings(deadline=None)
def test_a_row_is_the_same_in_every_batch(backend: str, case: tuple[Rows, Wishes]) -> None:
    logits, wishes = case
    together = adjusted(backend, logits, wishes, wide=False)
    for row, wish, found in zip(logits, wishes, together, strict=True):
        assert adjusted(backend, [row], [wish], wide=False) == [found]
        assert wish is not None or found == row


@AND_CUDA
@given(
    case=cases(),
    key=st.integers(0, 99),
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([-1, 1, 3]),
    top_p=st.sampled_from([1.0, 0.5, 0.99]),
)
@settings(deadline=None)
def test_a_masked_token_is_never_drawn(
    backend: str, case: tuple[Rows, Wishes], key: int, temperature: float, top_k: int, top_p: float
) -> None:
    logits, wishes = case
    how = [(SamplingParams(temperature, top_k, top_p), key, at) for at, _ in enumerate(logits)]
    tokens = chosen(backend, logits, wishes, how)
    assert tokens == chosen("sim", logits, wishes, how)
    for wish, token, row in zip(wishes, tokens, logits, strict=True):
        assert 0 <= token < len(row)
        bits = int.from_bytes(wish.vocab_mask or b"", "little") if wish is not None else 0
        may_come = [at for at, _ in enumerate(row) if bits >> at & 1]
        assert token in may_come or not may_come


@AND_CUDA
@pytest.mark.parametrize("mask", [b"", bytes(2), bytes(9), b"\x00\x00\xf8", b"\x00\x00\x00\x01"])
def test_a_mask_that_lets_nothing_pass_makes_no_nan(backend: str, mask: bytes) -> None:
    logits, wish = [[float(at) for at in range(19)]], LogitAdjustment(vocab_mask=mask)
    assert adjusted(backend, logits, [wish]) == logits


@AND_CUDA
def test_a_bias_can_not_bring_a_masked_token_back(backend: str) -> None:
    wish = LogitAdjustment(logit_bias={0: 100.0}, vocab_mask=b"\x06")
    assert adjusted(backend, [[1.0, 2.0, 3.0]], [wish]) == [[float("-inf"), 2.0, 3.0]]


def test_nothing_is_done_where_nobody_wants_anything() -> None:
    rows, tensor, array = [[1.0]], torch.ones(1, 1), mx.ones((1, 1))
    for wishes in ([], [None]):
        assert adjust.adjust(rows, wishes) is rows
        assert adjust_torch.adjust(tensor, wishes) is tensor
        assert adjust_mlx.adjust(array, wishes) is array


@pytest.mark.parametrize("wish", [LogitAdjustment(logit_bias={0: 1.0}),
                                  LogitAdjustment(vocab_mask=b"\x02")])  # fmt: skip
def test_the_logits_that_came_in_are_left_alone(wish: LogitAdjustment) -> None:
    """Log-probabilities are read off them as well."""
    rows, tensor, array = [[1.0, 2.0]], torch.tensor([[1.0, 2.0]]), mx.array([[1.0, 2.0]])
    outs = [
        adjust.adjust(rows, [wish]),
        adjust_torch.adjust(tensor, [wish]).tolist(),
        adjust_mlx.adjust(array, [wish]).tolist(),
    ]
    assert rows == tensor.tolist() == array.tolist() == [[1.0, 2.0]]
    assert outs[0] == outs[1] == outs[2] != rows


def test_sixteen_bits_are_enough_for_a_penalty() -> None:
    """Near 100 a bfloat16 is a multiple of 0.5: a penalty of 0.1 would be lost."""
    wish = LogitAdjustment(presence_penalty=0.1, counts={0: 1})
    halves = torch.tensor([[100.0, 100.0]], dtype=torch.bfloat16)
    assert adjust_torch.adjust(halves, [wish]).argmax() == 1
    assert mx.argmax(adjust_mlx.adjust(mx.array([[100.0, 100.0]], mx.bfloat16), [wish])) == 1
