"""How ``bench generation`` measures MLX: both in processes with the same BLAS, in turn."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from minisched.bench.generation import on_mlx
from minisched.bench.generation.load import BATCHES, Choice
from minisched.bench.generation.on_mlx import Kernels, choices, generation_mlx
from minisched.bench.generation.side_by_side import Contest
from minisched.bench.machine import cpus
from minisched.bench.peers import mlx_lm, own_mlx
from minisched.bench.rows import Figure


@pytest.fixture
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(on_mlx, "find_library", lambda name: f"lib{name}.so.0")


@pytest.mark.usefixtures("linux")
def test_stock_kernels_are_not_replaced() -> None:
    stock, other = choices()
    assert "LD_PRELOAD" not in stock.env
    assert other.env["LD_PRELOAD"] == "libopenblas.so.0"
    assert other.env["OPENBLAS_NUM_THREADS"] == str(cpus())


def test_a_mac_has_stock_kernels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert choices() == [Kernels("stock kernels")]


@pytest.mark.usefixtures("linux")
def test_without_openblas_a_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def figures(self: Contest, *how: object) -> list[Figure]:
        return []

    monkeypatch.setattr(on_mlx, "find_library", lambda name: None)
    monkeypatch.setattr(Contest, "figures", figures)
    rows = generation_mlx(tmp_path, 1, lambda doing: None, tmp_path, Choice())
    assert len(rows) == len({row.name for row in rows}) == len(BATCHES)
    assert all("no libopenblas" in row.reason and row.aim == 1.2 for row in rows)


@pytest.mark.parametrize("script", [own_mlx, mlx_lm])
def test_each_process_generates_all_tokens(script: Any, tiny_llama: Path) -> None:
    measure = script.start({"folder": str(tiny_llama)})
    answer = measure({"prompts": [[5, 6, 7], [8, 9]], "new_tokens": 6})
    tokens: Sequence[Sequence[int]] = answer["tokens"]
    assert list(map(len, tokens)) == [6, 6]
    assert 0 < answer["ttft"] <= answer["seconds"]
