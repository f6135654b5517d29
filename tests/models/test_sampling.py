"""Sampling: the noise is the published generator's, and every backend draws the same from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minisched.checks.oracle import threefry_2x32
from minisched.core import Request, SamplingParams
from minisched.core.sampling import KINDS
from minisched.devices.sim import SimDevice
from minisched.loops.run import run_loop
from minisched.models import sampling, sampling_arrays
from minisched.models.hash import HashModel
from minisched.models.sampling import WORD, threefry
from tests.support import many

Sampling = Sequence[tuple[SamplingParams, int, int]]  # params, key, position


pytestmark = pytest.mark.usefixtures("one_torch_thread")


def noise(backend: str, keys: Sequence[int], positions: Sequence[int], vocab: int) -> Any:
    if backend == "sim":
        pairs = zip(keys, positions, strict=True)
        return np.array([[*sampling.gumbel(*pair, range(vocab)).values()] for pair in pairs])
    if backend == "thread":
        columns = (torch.tensor(values)[:, None] for values in (keys, positions))
        return sampling_arrays.gumbel(*columns, vocab).numpy()
    with mx.stream(mx.cpu):
        columns = (mx.array(values, mx.int64)[:, None] for values in (keys, positions))
        return np.array(sampling_arrays.gumbel(*columns, vocab))


def chosen(backend: str, logits: Any, how: Sampling) -> Any:
    if backend == "sim":
        pairs = zip(logits, how, strict=True)
        return np.array([sampling.choose([*map(float, row)], *each) for row, each in pairs])
    if backend == "thread":
        return sampling_arrays.choose(torch.tensor(logits), how).numpy()
    with mx.stream(mx.cpu):  # the only place for float64
        return np.array(sampling_arrays.choose(mx.array(np.array(logits), dtype=mx.float64), how))


# -- numbers ---------------------------------------------------------------------------------------

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PUBLISHED = [  # Random123's kat_vectors: rounds, counter, key, what comes out
    (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    (13, PI[:2], PI[2:], (0xBA3E4725, 0xF27D669E)),
    (20, PI[:2], PI[2:], (0xC4923A9C, 0x483DF7A0)),
    (32, (WORD, WORD), (WORD, WORD), (0x6E2FE0D0, 0xB1B76F82)),
]


@pytest.mark.parametrize(("rounds", "counter", "key", "wanted"), PUBLISHED)
def test_the_generator_gives_the_published_words(
    rounds: int, counter: tuple[int, int], key: tuple[int, int], wanted: tuple[int, int]
) -> None:
    assert threefry(key, counter, rounds) == wanted
    for word in (torch.tensor, lambda values: mx.array(values, dtype=mx.uint32)):
        keys, counters = (tuple(word([half]) for half in each) for each in (key, counter))
        assert tuple(half.item() for half in threefry(keys, counters, rounds)) == wanted
    if rounds == 13:
        assert threefry_2x32(*key, *counter) == wanted, "the oracle has a generator of its own"


keys, positions = st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)


@given(rows=st.lists(st.tuples(keys, positions), min_size=1, max_size=4), vocab=st.integers(1, 99))
@example(rows=[(5, 7)], vocab=3000)
def test_every_backend_makes_the_same_noise(rows: list[tuple[int, int]], vocab: int) -> None:
    truth = noise("sim", *zip(*rows, strict=True), vocab)
    for backend in ("thread", "mlx"):
        found = noise(backend, *zip(*rows, strict=True), vocab)
        assert found.dtype == np.float64 and found.shape == (len(rows), vocab)
        np.testing.assert_allclose(found, truth, rtol=1e-14, atol=1e-15)


def test_the_noise_of_the_first_and_last_word_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    def ends(key: Any, counter: Any) -> Any:
        like = counter[0] * 0 + counter[1] * 0
        return like, like + WORD

    wanted = [-math.log(-math.log((word + 0.5) / 2**32)) for word in (0, WORD)]
    modules = {"sim": sampling, "thread": sampling_arrays, "mlx": sampling_arrays}
    for backend, of_it in modules.items():
        monkeypatch.setattr(of_it, "threefry", ends)
        assert noise(backend, [5], [7], 2).tolist() == [pytest.approx(wanted, rel=1e-12)]


# -- the distribution ------------------------------------------------------------------------------


def surprise(counts: Any, wanted: Any) -> float:
    """How odd counts are beside what is wanted, in standard deviations (Wilson and Hilferty)."""
    freedom = counts.size - 1
    chi_square = ((counts - wanted) ** 2 / wanted).sum()
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - 1 + spread) / math.sqrt(spread))


def check_flat(found: Any, kinds: int) -> None:
    """Whether numbers below ``kinds`` come equally often, by chance: not too unevenly or evenly."""
    counts = np.bincount(found.ravel(), minlength=kinds)
    assert counts.sum() >= 20 * kinds
    odd = surprise(counts, counts.sum() / kinds)
    assert abs(odd) < 4, f"{odd:.1f} standard deviations from even: {counts[:20]}"


def rows_along(axis: str, count: int) -> tuple[list[int], list[int]]:
    if axis == "positions":
        return [Request("r0", [1], SamplingParams(seed=3)).sampling_key] * count, [*range(count)]
    pairs = [(f"r{at}", 3) if axis == "requests" else ("r0", at) for at in range(count)]
    reqs = [Request(rid, [1], SamplingParams(seed=seed)) for rid, seed in pairs]
    return [req.sampling_key for req in reqs], [17] * count


@pytest.mark.parametrize("axis", ["positions", "requests", "seeds"])
def test_draws_are_even_and_say_nothing_of_those_beside_them(axis: str) -> None:
    rows, vocab = 10_000, 32
    draws = [*zip(*rows_along(axis, rows), strict=True)]
    for wanted, options in (
        ([0.4, 0.3, 0.2, 0.1], {"top_k": 3}), ([0.7, 0.1, 0.1, 0.05, 0.05], {"temperature": 0.5})
    ):  # fmt: skip
        params = SamplingParams(**{"temperature": 1.0, **options})  # type: ignore[arg-type]
        logits = np.tile(np.log(wanted) * params.temperature, (rows, 1))
        counts = np.bincount(chosen("thread", logits, [(params, *draw) for draw in draws]))
        kept = np.array(wanted[: params.top_k] if params.top_k > 0 else wanted)
        assert len(counts) == len(kept)
        assert abs(surprise(counts, kept / kept.sum() * rows)) < 4, counts
    table = noise("thread", *rows_along(axis, rows), vocab)
    for first, second in ((0, 1), (5, 9), (0, 31)):
        bits = (table[:, first] > table[:, second]).astype(int)
        for width in (2, 3, 5, 6):
            windows = bits[: rows // width * width].reshape(-1, width)
            check_flat(windows @ 2 ** np.arange(width), 2**width)
    every = table.reshape(rows // 2, 2, vocab // 4, 4).argmax(3)  # [.., two rows, fours of ids]
    check_flat(every[:, 0] * 4 + every[:, 1], 16)
    check_flat(every[:, :, :-1] * 4 + every[:, :, 1:], 16)


def test_of_neighbouring_ids_each_comes_as_often() -> None:
    table = noise("thread", *rows_along("positions", 16), 49_152)
    for stride, ids, start in product((1, 2, 3, 7, 64), (2, 3, 4, 5, 10), (0, 1)):
        whole = (49_152 - start) // (ids * stride) * ids * stride
        groups = table[:, start : start + whole].reshape(16, -1, ids, stride)
        check_flat(groups.argmax(2), ids)
    with pytest.raises(AssertionError, match="standard deviations from even"):
        check_flat(np.repeat(np.arange(5), [19_200, 18_900, 23_000, 19_200, 19_700]), 5)


# -- what is chosen --------------------------------------------------------------------------------

edges = st.sampled_from([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, 3e38, -3e38, 5e-324])
ties = st.integers(0, 12).map(lambda value: value / 3)
params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.001, 0.7, 1.0, 1e9]),
    top_k=st.sampled_from([-1, 1, 2, 4, 999]),
    top_p=st.sampled_from([1.0, 0.999, 0.8, 0.5, 1e-9]),
)


@given(st.lists(ties, min_size=1, max_size=30), params.filter(lambda how: not how.is_greedy))
@settings(max_examples=many(100, 500))
def test_top_k_and_top_p_leave_the_fewest_most_likely(
    scaled: list[float], how: SamplingParams
) -> None:
    order = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    order = order[: how.top_k] if how.top_k > 0 else order
    kept = sampling.kept(scaled, how)
    assert kept == order[: len(kept)]
    weights = [math.exp(scaled[token]) for token in order]
    reached, wanted = sum(weights[: len(kept)]), how.top_p * sum(weights)
    assert reached >= wanted * (1 - 1e-9) and reached - weights[len(kept) - 1] < wanted + 1e-9
    assert how.top_p < 1 or kept == order


@given(
    rows=st.integers(1, 13).flatmap(lambda vocab: st.lists(
        st.tuples(st.lists(edges | st.floats(-20, 20, width=32), min_size=vocab, max_size=vocab)
                  | st.lists(ties, min_size=vocab, max_size=vocab),
                  params, keys, st.integers(0, 5000)),
        min_size=1, max_size=5)),
)  # fmt: skip
@settings(max_examples=many(150, 500))
def test_every_backend_chooses_what_each_row_gets_alone(
    rows: list[tuple[list[float], SamplingParams, int, int]],
) -> None:
    logits, how = np.array([row for row, *_ in rows]), [(*rest,) for _, *rest in rows]
    truth, *others = (chosen(backend, logits, how) for backend in ("sim", "thread", "mlx"))
    for found in others:
        for at, row in enumerate(logits):
            if any(map(math.isnan, row)):
                assert truth[at] < 0 and found[at] < 0
            else:
                assert found[at] == truth[at] >= 0
                assert row[truth[at]] == math.inf or math.inf not in row


# -- what is left, where it depends on the last bit ------------------------------------------------


def on_torch(logits: torch.Tensor, params: list[SamplingParams]) -> list[set[int]]:
    left = sampling_arrays.kept(logits, params)
    return [set(row.nonzero()[:, 0].tolist()) for row in left]


def on_mlx(logits: torch.Tensor, params: list[SamplingParams]) -> list[set[int]]:
    with mx.stream(mx.cpu):
        array = mx.array(logits.double().numpy(), dtype=mx.float64)
        left: Any = sampling_arrays.kept(array, params).tolist()
    return [{at for at, stays in enumerate(row) if stays} for row in left]


@st.composite
def at_the_boundary(draw: st.DrawFn) -> tuple[torch.Tensor, list[SamplingParams]]:
    """Rows whose top-p is a share that some of their tokens have exactly; many are equal."""
    dtype, vocab = (
        draw(st.sampled_from([torch.bfloat16, torch.float32, torch.float64])),
        draw(st.integers(2, 300)),
    )
    values = st.lists(st.floats(-9, 9, width=32), min_size=1, max_size=4)
    rows, params = [], []
    for _ in range(draw(st.integers(1, 4))):
        kinds = draw(values)
        rows.append([kinds[hash((at, len(rows))) % len(kinds)] for at in range(vocab)])
        temperature = draw(st.sampled_from([1.0, 0.7, 1.3]))
        logits = torch.tensor([rows[-1]], dtype=dtype).double()
        falling = (logits / temperature).sort(descending=True).values[0]
        reached = ((falling - falling[0]).exp() * sampling.UNIT).floor().cumsum(-1)
        share = float(reached[draw(st.integers(0, vocab - 1))] / reached[-1])
        top_p = draw(st.sampled_from([share, math.nextafter(share, 0), math.nextafter(share, 1)]))
        top_k = draw(st.sampled_from([-1, -1, 1, 3, vocab // 2 + 1, vocab + 5]))
        top_p = draw(st.sampled_from([top_p, top_p, top_p, 1.0]))
        params.append(SamplingParams(temperature, top_k, min(max(top_p, 1e-9), 1.0)))
    return torch.tensor(rows, dtype=dtype), params


@given(case=at_the_boundary())
@settings(max_examples=many(40, 250))
def test_every_device_leaves_what_the_reference_leaves(
    case: tuple[torch.Tensor, list[SamplingParams]],
) -> None:
    logits, params = case
    truth = [
        set(sampling.kept([logit / how.temperature for logit in row], how))
        for row, how in zip(logits.tolist(), params, strict=True)
    ]
    assert on_torch(logits, params) == truth
    alone = zip(logits[:, None], params, strict=True)
    assert [on_torch(row, [p])[0] for row, p in alone] == truth
    assert on_mlx(logits, params) == truth


# -- what a client may ask for ---------------------------------------------------------------------


WRONG: dict[str, list[Any]] = {
    "float": ["1", True], "int": [1.5, True, 2**63], "str | None": [5, "\ud800"],
    "bool": [1, None], "tuple[str, ...]": ["abc", (3,), None], "frozenset[int]": [7, {1.5}],
    "Mapping[int, float]": [[(1, 2.0)], {"a": 1}, {1: "x"}, {1.5: 1}, None],
}  # fmt: skip


def test_a_value_of_the_wrong_kind_ends_its_request_alone() -> None:
    good = Request("good", [1, 2], SamplingParams(max_new_tokens=5, ignore_eos=True))
    requests, errors = [good], {}
    for item in fields(SamplingParams):
        name, kind = item.name, str(item.type)
        for at, value in enumerate(WRONG[kind]):
            bad: dict[str, Any] = {"return_logprob": True, "max_new_tokens": 5, name: value}
            requests.append(Request(f"{name} {at}", [3], SamplingParams(**bad)))
            errors[f"{name} {at}"] = f"{name} is {value!r}, but it must be {KINDS[kind][0]}."
    run = run_loop("overlap", SimDevice(), HashModel(), requests)
    assert run.errors == errors and len(run.outputs["good"]) == 5


def test_of_equal_logits_the_lower_id_comes_first() -> None:
    (row,) = sampling.logprobs([[1.0, 2.0, 2.0]], [0], [0], top=3)
    assert row[4:] == [1.0, 2.0, 0.0]
