"""The promise of a model is measured: exact, margin, or refused; and it is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import minisched as ms
from minisched.checks.identity import Difference
from minisched.cli.compare import promise_json
from minisched.comparison import verdict
from minisched.models.llama_torch import LlamaTorch
from minisched.models.promise import (
    KEPT,
    TIMES,
    Refused,
    is_allowed,
    kind_of,
    measure_apart,
    read_kept,
)
from minisched.models.registry import open_model
from minisched.trace.native import from_json as read_trace
from minisched.trace.native import to_json

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def some() -> list[ms.Request]:
    params = ms.SamplingParams(max_new_tokens=6, ignore_eos=True)
    return [ms.Request(f"r{i}", range(5 + i, 5 + i + n), params) for i, n in enumerate((3, 20))]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINISCHED_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


class Moved(LlamaTorch):
    """A Llama with logits that depend on the number of rows of a step."""

    by = 0.0
    counts: Any = None

    def forward(self, batch: Any, ids: Any, page_table: Any) -> Any:
        if self.counts is not None:
            self.counts.append(batch.num_tokens)
        return super().forward(batch, ids, page_table) + self.by * (len(batch.rows) > 4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_own_llama_is_exact(dtype: str, tiny_llama: Path) -> None:
    assert measure_apart(LlamaTorch(tiny_llama, dtype), "thread") == 0


def test_a_model_that_moves_with_the_batch_has_a_margin(tiny_llama: Path) -> None:
    model = Moved(tiny_llama)
    model.by = 1e-3
    apart = measure_apart(model, "thread")
    assert kind_of(apart) == "margin" and apart == pytest.approx(1e-3, rel=0.01)
    assert is_allowed(TIMES * apart, apart)
    assert not is_allowed(TIMES * apart * 1.01, apart)
    assert not is_allowed(0.0, 0.0) and not is_allowed(None, apart)


@pytest.mark.parametrize("by", [100.0, float("nan"), float("inf")])
def test_what_no_rounding_explains_is_refused(by: float, tiny_llama: Path) -> None:
    model = Moved(tiny_llama)
    model.by = by
    with pytest.raises(Refused, match=r"^tiny_llama\S* can't run here: .* no rounding is so"):
        measure_apart(model, "thread")


def test_a_measurement_is_kept_until_the_checkpoint_changes(home: Path, tiny_llama: Path) -> None:
    model = Moved(tiny_llama, "float32")
    model.counts = []
    found = measure_apart(model, "thread", tiny_llama)
    steps = len(model.counts)
    assert measure_apart(model, "thread", tiny_llama) == found and len(model.counts) == steps > 0
    assert read_kept(home / KEPT).values() != {}
    (tiny_llama / "config.json").touch()
    measure_apart(model, "thread", tiny_llama)
    assert len(model.counts) == 2 * steps and len(read_kept(home / KEPT)) == 2
    (home / KEPT).write_text("{", "utf-8")  # damaged
    assert measure_apart(model, "thread", tiny_llama) == found


def test_a_short_context_has_a_promise(tmp_path: Path) -> None:
    from minisched.bench.tiny_llama import write_tiny_llama

    model = LlamaTorch(write_tiny_llama(tmp_path, context=8))
    assert measure_apart(model, "thread") == 0
    assert torch.get_num_threads() == 1


# -- what a run, a trace and a comparison contain of it --------------------------------------------


def opened(folder: Path, apart: float | None) -> Any:
    model: Any = Moved(folder)
    model.apart = apart
    return model


def test_a_comparison_reports_the_class_and_a_trace_keeps_it(tiny_llama: Path) -> None:
    for apart, kind in ((0.0, "exact"), (1e-5, "margin"), (None, "")):
        found = ms.compare(some(), device="thread", model=opened(tiny_llama, apart))
        trace = found.runs[1].trace
        assert trace.apart == found.apart == apart
        assert read_trace(to_json(trace)) == trace
        assert found.identical and not found.violations
        assert (f"as measured: {kind}." in repr(found)) == bool(kind)
        assert (found.closest is None) == (kind != "margin")
        assert promise_json(found).get("promise", "") == kind


def test_the_closest_choice_is_that_of_the_logits(tiny_llama: Path) -> None:
    model = opened(tiny_llama, 1e-5)
    found = ms.compare(some(), device="thread", model=model)
    margins: list[tuple[float, str]] = []
    for req in some():
        sample = model.sample

        def spy(logits: Any, batch: Any, rid: str = req.rid, sample: Any = sample) -> Any:
            first, second = logits[0].topk(2).values.tolist()
            margins.append((first - second, rid))
            return sample(logits, batch)

        model.sample = spy
        ms.run([req], "serial", device="thread", model=model)
        model.sample = sample
    assert found.closest is not None
    assert found.closest.margin == pytest.approx(min(margins)[0], abs=1e-5)
    assert found.closest.rid == min(margins)[1]


def test_check_does_not_judge_other_tokens_of_a_model_with_a_margin(tiny_llama: Path) -> None:
    one, two = (
        ms.run([replace(some()[0], prompt=(token, 6, 7))], "serial", device="thread",
               model=opened(tiny_llama, None))
        for token in (5, 99)
    )  # fmt: skip
    assert one.outputs != two.outputs
    for apart, holds in ((1e-5, True), (0.0, False), (None, False)):
        runs = [replace(run, trace=replace(run.trace, apart=apart)) for run in (one, two)]
        answer = [*ms.check(*runs).answers.values()][1][0]
        assert answer.question == "identical"
        assert answer.holds == holds and (answer.word == "unknown") == holds


def test_another_token_is_a_violation_only_above_the_margin(tiny_llama: Path) -> None:
    difference = Difference("overlap", "r1", 3, 5, 6, margin=1e-4)
    found = ms.compare(some(), device="thread", model=opened(tiny_llama, 1e-4))
    for apart, violations in ((1e-4, 0), (1e-5, 1), (0.0, 1), (None, 1)):
        runs = tuple(replace(run, trace=replace(run.trace, apart=apart)) for run in found.runs)
        other = replace(found, runs=runs, differences=(difference,))
        assert len(other.violations) == violations and not other.identical
        assert ("up to the measured movement" in verdict(other)) == (not violations)


def test_a_loaded_model_of_mlx_lm_is_compared() -> None:
    from mlx_lm.models.llama import Model, ModelArgs

    args = ModelArgs(
        model_type="llama", hidden_size=64, num_hidden_layers=2, intermediate_size=128,
        num_attention_heads=4, rms_norm_eps=1e-5, vocab_size=300, max_position_embeddings=256,
    )  # fmt: skip
    loaded = Model(args)
    found = ms.compare(some(), device="mlx", model=(loaded, None))
    assert found.identical and found.apart == 0.0 and found.runs[0].trace.model == "llama"
    assert type(loaded["model"]).__name__ == "LlamaModel"  # the user's object stays as it is
    with pytest.raises(ValueError, match=r"^a loaded Model can't run on device 'sim'; use"):
        ms.run(some(), device="sim", model=(loaded, None))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_quantized_checkpoint_of_mlx_lm_is_exact(
    dtype: str, tiny_llama: Path, tmp_path: Path
) -> None:
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    whole, config = load_model(tiny_llama)
    quantized, config = quantize_model(whole, config, group_size=32, bits=4)
    save_model(tmp_path, quantized)
    save_config(config, tmp_path / "config.json")
    model: Any = open_model(str(tmp_path), "mlx", dtype)
    assert (model.apart, model.dtype) == (0.0, dtype)
    found = ms.compare(some(), device="mlx", model=model)
    truth = ms.compare(some(), device="mlx", model=str(tiny_llama))
    assert found.identical and found.runs[0].outputs != truth.runs[0].outputs
    with pytest.raises(ValueError, match=f"^{tmp_path} is quantized for MLX; use --device mlx"):
        open_model(str(tmp_path), "thread")


def test_layers_with_another_state_are_refused() -> None:
    from mlx_lm.models.mamba2 import Model, ModelArgs

    args = ModelArgs(
        model_type="mamba2", num_heads=4, head_dim=16, vocab_size=300, hidden_size=32,
        intermediate_size=64,
        state_size=16, num_hidden_layers=2, layer_norm_epsilon=1e-5, conv_kernel=4, n_groups=1,
        use_bias=False, use_conv_bias=True, tie_word_embeddings=True, time_step_limit=(0.0, 1.0),
        time_step_rank="auto",
    )  # fmt: skip
    with pytest.raises(
        Refused, match=r"^mamba2 can't run here: a layer keeps mlx-lm's \w+, and only keys"
    ):
        ms.run(some(), device="mlx", model=(Model(args), None))
