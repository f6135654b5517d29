"""How weights lie and who attends together on MLX: whatever is quicker, it changes no bit.

On the stock kernels, that is, with which these tests run.
"""

from __future__ import annotations

import shutil
from copy import deepcopy
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from minisched.core import Request, SamplingParams
from minisched.devices.mlx import MlxDevice
from minisched.loops.run import run_loop
from minisched.models import llama_mlx_matrix, llama_mlx_weights
from minisched.models.equal_extent import TOGETHER, Run
from minisched.models.llama_mlx_groups import PADDING, make_groups
from minisched.models.llama_mlx_matrix import TILE, Layout, Matrix
from minisched.models.registry import open_model
from minisched.models.weights import FLOATS, WeightsError, find_model
from tests.mlx_llama import Recording, llama_workloads
from tests.support import Workload, open_device, play

LAYOUTS = [Layout(turned, tiled) for turned in (True, False) for tiled in (True, False)]
FEW = 12  # tokens that go through tiles here; more are multiplied by the whole matrix


def logits_of(model: Recording, workload: Workload) -> list[tuple[str, int, list[float]]]:
    """All logits of a run, with whose they are and after how many tokens."""
    model.kept.clear()
    play(deepcopy(workload), "serial", "host", {}, MlxDevice(), model)
    return [(rid, length, logits.tolist()) for rid, length, logits in model.kept]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("device", ["thread", "mlx"])
def test_every_kind_of_float_that_is_accepted_can_be_read(
    device: str, dtype: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """MLX reads no float64 from files."""
    model = Path(shutil.copytree(tiny_llama, tmp_path / dtype))
    tensors = load_file(model / "model.safetensors")
    as_torch = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
                "BF16": torch.bfloat16}[dtype]  # fmt: skip
    save_file({name: each.to(as_torch) for name, each in tensors.items()},
              model / "model.safetensors")  # fmt: skip
    request = Request("r", [3, 1, 4], SamplingParams(max_new_tokens=6))

    def said(directory: Path) -> list[int]:
        loaded: Any = open_model(str(find_model(directory)), device)
        run = run_loop("serial", open_device(device), loaded, [deepcopy(request)])
        return run.outputs["r"]

    assert len(said(model)) == 6
    if dtype == "F64":  # of which float32 has every one here
        assert said(model) == said(tiny_llama)


def test_float64_beside_bfloat16_is_refused_on_mlx(tiny_llama: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_llama, tmp_path / "both"))
    tensors = load_file(model / "model.safetensors")
    for name, dtype in zip(tensors, [torch.float64, torch.bfloat16], strict=False):
        tensors[name] = tensors[name].to(dtype)
    save_file(tensors, model / "model.safetensors")
    with pytest.raises(WeightsError, match="has float64 beside bfloat16, which can't be read for"):
        open_model(str(find_model(model)), "mlx")


# -- how weights lie ---------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["llama", "biases", "qwen3 biases"])
def by_layout(request: pytest.FixtureRequest, kinds: dict[str, Path]) -> dict[Layout, Recording]:
    """The same weights in every layout."""
    models = {}
    for layout in LAYOUTS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(llama_mlx_weights, "quickest", lambda weight, layout=layout: layout)
            models[layout] = Recording(kinds[request.param])
        weights = models[layout].weights
        for matrix in (*chain(*map(matrices, weights.layers)), weights.head):
            assert is_turned(matrix.whole) is layout.turned
            fits = matrix.whole.shape[1] % TILE == 0
            assert (matrix.tiles is not None) is (layout.tiled and fits)
    return models


def matrices(layer: llama_mlx_weights.LayerWeights) -> list[Matrix]:
    """A layer's."""
    return [layer.qkv, layer.out, layer.gate, layer.up, layer.down]


def is_turned(matrix: mx.array) -> bool:
    """Whether [in, out] lies in memory row by row."""
    of_row, of_column = memoryview(matrix).strides  # type: ignore[arg-type]
    return of_row > of_column


@given(workload=llama_workloads())
@settings(max_examples=20, deadline=None)
def test_how_weights_lie_changes_no_bit(
    workload: Workload, by_layout: dict[Layout, Recording]
) -> None:
    """So it does not matter which layout was quicker when they were read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_mlx_matrix, "SMALL", FEW * 64 * TILE)
        first, *others = (logits_of(model, workload) for model in by_layout.values())
    assert first and all(other == first for other in others)


@given(
    tokens=st.integers(1, 2 * FEW),
    dim=st.integers(1, 40),
    out=st.sampled_from([1, TILE - 1, TILE, 3 * TILE]),
    layout=st.sampled_from(LAYOUTS),
    has_bias=st.booleans(),
)
@settings(deadline=None)
def test_a_product_is_that_of_the_weight_as_files_have_it(
    tokens: int, dim: int, out: int, layout: Layout, has_bias: bool
) -> None:
    weight, x = mx.random.normal((out, dim)), mx.random.normal((tokens, dim))
    bias = mx.random.normal((out,)) if has_bias else None
    laid = llama_mlx_matrix.lay(weight, layout, bias)
    assert (laid.tiles is not None) is (layout.tiled and out % TILE == 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_mlx_matrix, "SMALL", FEW * dim * TILE)
        expected = x @ weight.T if bias is None else x @ weight.T + bias
        assert mx.array_equal(llama_mlx_matrix.times(x, laid), expected)


@pytest.mark.parametrize(
    ("as_filed", "turned", "tiled", "chosen"),
    [
        (2, 1, 1, Layout(turned=True)),
        (1, 2, 1, Layout(turned=False)),
        (1, 2, 0.7, Layout(turned=False)),  # not worth the memory
        (1, 2, 0.5, Layout(turned=False, tiled=True)),
        (3, 1, 0.5, Layout(turned=True, tiled=True)),
    ],
)
def test_weights_lie_as_the_quicker_product_wants_them(
    monkeypatch: pytest.MonkeyPatch, as_filed: float, turned: float, tiled: float, chosen: Layout
) -> None:
    def seconds(row: mx.array, matrix: mx.array) -> float:
        if matrix.ndim == 3:
            assert (row @ matrix).shape == (2, 1, TILE)
            return tiled
        assert (row @ matrix).shape == (1, 2 * TILE + 7)
        mx.eval(matrix)
        return turned if is_turned(matrix) else as_filed

    monkeypatch.setattr(llama_mlx_matrix, "seconds", seconds)
    assert llama_mlx_matrix.quickest(mx.ones((2 * TILE + 7, 5))) == chosen


# -- who attends together ----------------------------------------------------------------------

extents = st.one_of(st.just(1), st.just(4), st.integers(1, 2 * TOGETHER))
batches = st.lists(st.tuples(st.integers(0, 300), extents), min_size=1, max_size=9)
paddings = st.one_of(st.none(), st.just(PADDING), st.integers(0, 400))


@given(batches, paddings)
def test_every_token_attends_once_and_little_is_looked_at_in_vain(
    rows: list[tuple[int, int]], padding: int | None
) -> None:
    prefix_lens, extend_lens = [before for before, _ in rows], [new for _, new in rows]
    groups = list(make_groups(prefix_lens, extend_lens, padding))
    assert [at for group in groups for at in range(len(rows))[group.rows]] == [*range(len(rows))]
    first = 0
    for group in groups:
        mine = range(len(rows))[group.rows]
        assert {extend_lens[at] for at in mine} == {group.extend_len}
        assert group.tokens == slice(first, first + len(mine) * group.extend_len)
        first += len(mine) * group.extend_len
        assert padding is None or in_vain(prefix_lens[group.rows]) <= padding
    for one, two in pairwise(groups):
        if padding is None or one.extend_len != two.extend_len or one.extend_len > TOGETHER:
            continue  # no group ends before it must
        longer = prefix_lens[one.rows.start : two.rows.start + 1]
        assert in_vain(longer) > padding


def in_vain(lengths: list[int]) -> int:
    """Positions beyond their ends that rows read which attend together."""
    return sum(max(lengths) - length for length in lengths)


def test_a_gpu_gets_groups_as_large_as_can_be() -> None:
    rows = slice(0, 3), slice(0, 3)
    assert list(make_groups([9, 900, 90], [1] * 3, None)) == [Run(*rows, 1)]


@given(workload=llama_workloads(), padding=st.integers(0, 60))
@settings(max_examples=20, deadline=None)
def test_who_attends_together_changes_no_bit(
    workload: Workload, padding: int, tiny: Recording
) -> None:
    """Against one group for everybody who can attend together."""
    tiny.padding = None
    whole = logits_of(tiny, workload)
    tiny.padding = padding
    assert logits_of(tiny, workload) == whole and whole


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> Recording:
    return Recording(tiny_llama)
