"""How ``bench limit`` is put together: parts that are a whole step, rates in turn with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minisched.bench.limit import limit as module
from minisched.bench.limit import rates as limit_rates
from minisched.bench.limit.limit import AIM, limit, rows_of, share
from minisched.bench.limit.parts import Part, Shape, each, parts
from minisched.models.llama_torch import LlamaTorch, script


def test_a_step_reads_each_weight_and_what_is_remembered_once(tiny_llama: Path) -> None:
    model = LlamaTorch(tiny_llama)
    w = model.weights
    found = parts(model, Shape(batch=3, extend=1, before=99))
    matrices = [*w.qkv, *w.out, *w.gate_up, *w.down, w.head]
    kv_heads, d = model.kv_shape
    remembered = 2 * model.num_layers * 3 * 100 * kv_heads * d
    assert found["step"].num_bytes == 4 * (sum(m.numel() for m in matrices) + remembered)
    assert found["qkv"].operations == 2 * 3 * sum(m.numel() for m in w.qkv)


@pytest.mark.parametrize("shape", [Shape(3, 1, 70), Shape(1, 66, 0), Shape(2, 40, 5)])
def test_every_part_runs_and_a_step_gives_a_row_for_each_request(
    shape: Shape, tiny_llama: Path
) -> None:
    model = LlamaTorch(tiny_llama)
    with torch.inference_mode():
        logits, *_ = (part.run() for part in parts(model, shape).values())
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (shape.batch, model.vocab_size) and logits.isfinite().all()


def test_the_limit_is_told_for_every_part_that_has_one(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DECODES", (Shape(1, 1, 9), Shape(2, 1, 9)))
    monkeypatch.setattr(module, "PREFILL", Shape(1, 8, 0))
    monkeypatch.setattr(limit_rates, "READ", 1 << 12)
    monkeypatch.setattr(limit_rates, "SIDE", 8)
    said: list[str] = []
    cores = torch.get_num_threads()
    rows = limit(tiny_llama, 2, said.append, ["float32"])
    units = {row.name: row.unit for row in rows}
    assert units["float32 decode, batch 1: limit"] == "GB/s"
    assert units["float32 prefill of 8: limit"] == "GFLOP/s"
    assert units["float32 decode, batch 2: attention, of the limit"] == "%"
    assert units["float32 decode, batch 1: step in the loop overlap"] == "ms"
    assert units["float32 decode, batch 1: step in the loop overlap, of the limit"] == "%"
    asked = [row for row in rows if row.aim]
    assert {row.name for row in asked} == {
        "float32 decode, batch 1: step, of the limit",
        *([f"float32 decode, batch 1, {cores} threads: step, of the limit"] if cores > 1 else []),
    }
    assert all(("ms, the limit is" in row.reason) == (row.met is False) for row in asked)
    assert torch.get_num_threads() == cores
    turns = [doing for doing in said if "batch 1: " in doing]
    assert "rate, repetition 1" in turns[0] and "step, repetition 1" in turns[1]
    assert turns[len(turns) // 2].endswith("rate, repetition 2 of 2")


def test_twice_the_least_time_is_half_of_the_limit() -> None:
    assert share(500, [2.0, 1.0], 500_000.0) == [AIM, 100.0]


def test_a_case_that_misses_its_aim_says_where_the_time_goes() -> None:
    part = Part(lambda: None, num_bytes=2_000_000)
    found = dict.fromkeys(["step", "attention", *module.MATRICES], part)
    values = {name: [1.0] for name in found} | {"rate": [1e9, 2e9], "step": [10.0]}
    rows = rows_of("decode, batch 1", values, found, decodes=True)
    why = "of 10.0 ms, the limit is 1.0; called by themselves, the matrices take 5.0"
    assert [row.name for row in rows if row.reason.startswith(why)] == [
        "decode, batch 1: step, of the limit"
    ]


def test_above_the_limit_is_explained() -> None:
    found = {"step": Part(lambda: None, num_bytes=2_000_000)}
    found |= dict.fromkeys(["attention", *module.MATRICES], Part(lambda: None))
    rows = [
        rows_of("decode, batch 2", {name: [ms] for name in found} | {"rate": [1e9]}, found, True)[2]
        for ms in (1.0, 3.0)
    ]
    assert [row.median for row in rows] == pytest.approx([200.0, 200 / 3])
    assert [row.reason for row in rows] == [module.DRIFTED, ""]


def test_no_product_is_left_out() -> None:
    """torch.jit unrolls the loop by eight, and drops a product that nobody sees."""
    x, good, bad = torch.ones(4, 8), torch.ones(3, 8), torch.ones(3, 7)
    compiled = script(each)
    for _ in range(module.WARM_UP):
        compiled(x, [good] * 20, [x])
    for at in range(20):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            compiled(x, [good] * at + [bad] + [good] * (19 - at), [x])
