"""Sampling: the noise is the published generator's, draws are distributed as they should be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Request, SamplingParams
from minisched.models import sampling, sampling_mlx, sampling_torch
from minisched.models.sampling import WORD, threefry

BACKENDS = pytest.mark.parametrize("backend", ["sim", "thread", "mlx"])
Sampling = Sequence[tuple[SamplingParams, int, int]]


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# -- the generator -----------------------------------------------------------------------------

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
PUBLISHED = [  # Random123's kat_vectors: rounds, counter, key, what comes out
    (13, (0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    (13, (WORD, WORD), (WORD, WORD), (0xFD36D048, 0x2D17272C)),
    (13, PI[:2], PI[2:], (0xBA3E4725, 0xF27D669E)),
    (20, (0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    (20, (WORD, WORD), (WORD, WORD), (0x1CB996FC, 0xBB002BE7)),
    (20, PI[:2], PI[2:], (0xC4923A9C, 0x483DF7A0)),
    (32, (0, 0), (0, 0), (0xCEE3D47E, 0xA23DFD5C)),
    (32, (WORD, WORD), (WORD, WORD), (0x6E2FE0D0, 0xB1B76F82)),
    (32, PI[:2], PI[2:], (0xE2827716, 0xC3C05CDF)),
]


def words(backend: str, values: Sequence[int]) -> Any:
    """Words of 32 bits in what a backend computes with."""
    if backend == "thread":
        return torch.tensor(values)
    with mx.stream(mx.cpu):
        return mx.array(list(values), dtype=mx.uint32)


@pytest.mark.parametrize(("rounds", "counter", "key", "wanted"), PUBLISHED)
@BACKENDS
def test_the_generator_gives_the_published_words(
    backend: str, rounds: int, counter: tuple[int, int], key: tuple[int, int],
    wanted: tuple[int, int],
) -> None:  # fmt: skip
    if backend == "sim":
        assert threefry(key, counter, rounds) == wanted
        return
    found = threefry(
        (words(backend, key[:1]), words(backend, key[1:])),
        (words(backend, counter[:1]), words(backend, counter[1:])),
        rounds,
    )
    assert tuple(half.item() for half in found) == wanted


keys, positions = st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1)


@given(rows=st.lists(st.tuples(keys, positions), min_size=1, max_size=4), vocab=st.integers(1, 99))
@settings(deadline=None)
def test_every_backend_makes_the_same_noise(rows: list[tuple[int, int]], vocab: int) -> None:
    """From the same words exactly; a logarithm may differ in its last bit."""
    truth = [[*sampling.gumbel(*row, range(vocab)).values()] for row in rows]
    for backend in ("thread", "mlx"):
        found = noise(backend, *zip(*rows, strict=True), vocab)
        assert found.dtype == np.float64 and found.shape == (len(rows), vocab)
        np.testing.assert_allclose(found, truth, rtol=1e-14, atol=1e-15)


@BACKENDS
def test_the_noise_of_the_first_and_the_last_word_is_finite(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One infinity would decide alone; in float32 u is 1 once in 2**25 tokens."""
    of_backend = {"sim": sampling, "thread": sampling_torch, "mlx": sampling_mlx}[backend]

    def ends(key: Any, counter: Any) -> Any:
        like = counter[0] * 0 + counter[1] * 0
        return like, like + WORD

    monkeypatch.setattr(of_backend, "threefry", ends)
    found = noise(backend, [5], [7], 2).tolist()
    wanted = [-math.log(-math.log((word + 0.5) / 2**32)) for word in (0, WORD)]
    assert found == [pytest.approx(wanted, rel=1e-12)]


def noise(backend: str, keys: Sequence[int], positions: Sequence[int], vocab: int) -> Any:
    """A backend's noise [rows, vocab]."""
    if backend == "sim":
        pairs = zip(keys, positions, strict=True)
        return np.array([[*sampling.gumbel(*pair, range(vocab)).values()] for pair in pairs])
    if backend == "thread":
        columns = (torch.tensor(values)[:, None] for values in (keys, positions))
        return sampling_torch.gumbel(*columns, vocab).numpy()
    with mx.stream(mx.cpu):
        return np.array(sampling_mlx.gumbel(*map(sampling_mlx.column, (keys, positions)), vocab))


# -- the distribution --------------------------------------------------------------------------

ROWS = {"sim": 2_000, "thread": 10_000, "mlx": 10_000}


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
    """Keys and positions of draws: one request's positions, or many requests or seeds at one."""
    if axis == "positions":
        return [Request("r0", [1], SamplingParams(seed=3)).sampling_key] * count, [*range(count)]
    if axis == "requests":
        reqs = [Request(f"r{at}", [1], SamplingParams(seed=3)) for at in range(count)]
    else:
        reqs = [Request("r0", [1], SamplingParams(seed=at)) for at in range(count)]
    return [req.sampling_key for req in reqs], [17] * count


AXES = pytest.mark.parametrize("axis", ["positions", "requests", "seeds"])
FLAT = [1.0]


@pytest.mark.parametrize(
    ("wanted", "how"),
    [
        (FLAT * 2, {}), (FLAT * 4, {}), (FLAT * 5, {}), (FLAT * 10, {}), (FLAT * 10, {"top_k": 9}),
        ([0.4, 0.3, 0.2, 0.1], {}), ([0.7, 0.1, 0.1, 0.05, 0.05], {"temperature": 0.5}),
        ([0.5, 0.25, 0.125, 0.0625, 0.0625], {"top_p": 0.99}),
    ],
)  # fmt: skip
@AXES
@BACKENDS
def test_tokens_come_as_often_as_they_should(
    backend: str, axis: str, wanted: list[float], how: dict[str, Any]
) -> None:
    """Of a small vocabulary, drawn as a model's sampler draws: chi-square against the softmax."""
    params = SamplingParams(**{"temperature": 1.0, **how})
    logits = np.log(wanted) * params.temperature
    sampling = [(params, *row) for row in zip(*rows_along(axis, ROWS[backend]), strict=True)]
    counts = np.bincount(
        chosen(backend, np.tile(logits, (len(sampling), 1)), sampling), minlength=len(wanted)
    )
    kept = np.array(wanted[: params.top_k] if params.top_k > 0 else wanted)
    assert not counts[len(kept) :].any()
    odd = surprise(counts[: len(kept)], kept / kept.sum() * len(sampling))
    assert abs(odd) < 4, f"{odd:.1f} standard deviations from the softmax: {counts}"


@pytest.mark.parametrize("stride", [1, 2, 3, 7, 64])
@BACKENDS
def test_of_neighbouring_ids_each_comes_as_often(backend: str, stride: int) -> None:
    """In a vocabulary of a real size: of 4, 5 and 10 ids so far apart, from every start."""
    rows, vocab = (4, 3_000) if backend == "sim" else (16, 49_152)
    table = noise(backend, *rows_along("positions", rows), vocab)
    for ids in (2, 3, 4, 5, 10):
        for start in (0, 1):
            whole = (vocab - start) // (ids * stride) * ids * stride
            groups = table[:, start : start + whole].reshape(rows, -1, ids, stride)
            check_flat(groups.argmax(2), ids)


@AXES
@BACKENDS
def test_a_draw_says_nothing_of_those_beside_it(backend: str, axis: str) -> None:
    """Windows of 2 to 6 positions (requests, seeds) in a row, at which two tokens are equal."""
    rows, vocab = ROWS[backend] // 2, 32
    table = noise(backend, *rows_along(axis, rows), vocab)
    for first, second in ((0, 1), (1, 2), (5, 9), (0, 31)):
        bits = (table[:, first] > table[:, second]).astype(int)
        for width in (2, 3, 5, 6):
            windows = bits[: rows // width * width].reshape(-1, width)
            if len(windows) < 20 * 2**width:
                continue
            check_flat(windows @ 2 ** np.arange(width), 2**width)
    every = table.reshape(rows // 2, 2, vocab // 4, 4).argmax(3)  # [.., two rows, fours of ids]
    check_flat(every[:, 0] * 4 + every[:, 1], 16)
    check_flat(every[:, :, :-1] * 4 + every[:, :, 1:], 16)


def test_a_biased_coin_is_found() -> None:
    """The measure itself: what the noise was once, of 5 equal tokens, and an even sequence."""
    with pytest.raises(AssertionError, match="standard deviations from even"):
        check_flat(np.repeat(np.arange(5), [19_200, 18_900, 23_000, 19_200, 19_700]), 5)
    with pytest.raises(AssertionError, match="standard deviations from even"):
        check_flat(np.arange(100_000) % 5, 5)
    assert NormalDist().cdf(-4) * 2 < 1e-4  # how often that is wrong of chance


# -- logits at the edge ------------------------------------------------------------------------


def chosen(backend: str, logits: Any, sampling_of: Sampling) -> Any:
    """A backend's tokens for float64 logits [rows, vocab]."""
    if backend == "sim":
        pairs = zip(logits, sampling_of, strict=True)
        return np.array([sampling.choose([*map(float, row)], *how) for row, how in pairs])
    if backend == "thread":
        return sampling_torch.choose(torch.tensor(logits), sampling_of).numpy()
    with mx.stream(mx.cpu):
        rows = mx.array(np.array(logits), dtype=mx.float64)
        return np.array(sampling_mlx.sample(rows, sampling_of).tolist())


edges = st.sampled_from([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, 3e38, -3e38, 5e-324])
edge_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.001, 0.7, 1.0, 1e9]),
    top_k=st.sampled_from([-1, 1, 2, 4, 999]),
    top_p=st.sampled_from([1.0, 0.999, 0.5, 1e-9]),
)


@given(
    rows=st.integers(1, 9).flatmap(lambda vocab: st.lists(
        st.tuples(st.lists(edges | st.floats(-20, 20, width=32), min_size=vocab, max_size=vocab),
                  edge_params, keys, st.integers(0, 5000)),
        min_size=1, max_size=4))
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_every_backend_chooses_the_same_at_the_edge(
    rows: list[tuple[list[float], SamplingParams, int, int]],
) -> None:
    """Infinite logits, equal ones, nothing but -inf; where there is NaN, each marks its token."""
    logits, how = np.array([row for row, *_ in rows]), [(*rest,) for _, *rest in rows]
    truth, *others = (chosen(backend, logits, how) for backend in ("sim", "thread", "mlx"))
    for found in others:
        for at, row in enumerate(logits):
            if any(map(math.isnan, row)):
                assert truth[at] < 0 and found[at] < 0
            else:
                assert found[at] == truth[at] >= 0
                assert row[truth[at]] == math.inf or math.inf not in row
