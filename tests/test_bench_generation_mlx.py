"""How ``bench generation`` measures MLX: both in processes with the same BLAS, in turn.

No time is asserted: what is slow on one machine is fast on another.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from minisched.bench.generation import on_mlx as generation_mlx
from minisched.bench.generation.on_mlx import AIM, LOADS, STOCK_LOADS, Kernels, Load
from minisched.bench.peers import mlx_lm, own_mlx
from minisched.bench.peers.peer import PeerError


class StandIn:
    """A process that answers at once: ours takes a second, the peer two."""

    asked: ClassVar[list[str]]
    env: ClassVar[list[Mapping[str, str]]]
    refuses: ClassVar[str] = ""

    def __init__(
        self, python: Path, script: str, settings: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        if script == self.refuses:
            raise PeerError(f"{script} can't start")
        self.script = script
        self.env.append(env)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.asked.append(f"{self.script} ends")

    def ask(self, question: Mapping[str, Any]) -> dict[str, float]:
        self.asked.append(f"{self.script} {len(question['prompts'])}")
        return {"seconds": {"own_mlx": 1.0, "mlx_lm": 2.0}[self.script], "ttft": 0.5}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    class Fresh(StandIn):
        asked: ClassVar[list[str]] = []
        env: ClassVar[list[Mapping[str, str]]] = []

    monkeypatch.setattr(generation_mlx, "Peer", Fresh)
    monkeypatch.setattr(generation_mlx, "environment", lambda *which: Path("python"))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(generation_mlx, "find_library", lambda name: f"lib{name}.so.0")
    return Fresh


def test_both_take_turns_with_the_same_kernels(stand_in: type[StandIn], tmp_path: Path) -> None:
    load = Load((3, 5), 4)
    kernels = Kernels("OpenBLAS", "libopenblas.so.0", 2)
    rows = generation_mlx.figures_of(kernels, (load,), tmp_path, 2, lambda doing: None, tmp_path)
    assert stand_in.asked == ["own_mlx 2", "mlx_lm 2"] * 2 + ["mlx_lm ends", "own_mlx ends"]
    for env in stand_in.env:
        assert env["LD_PRELOAD"] == "libopenblas.so.0" and env["OPENBLAS_NUM_THREADS"] == "2"
    case = "OpenBLAS, batch 2, prompts of 3 to 5, 4 new"
    assert {row.name: (row.median, row.unit) for row in rows} == {
        f"{case}: minisched": (8.0, "tokens/s"),
        f"{case}: mlx-lm": (4.0, "tokens/s"),
        f"{case}: minisched / mlx-lm": (2.0, "ratio"),
        f"{case}: minisched, TTFT": (500.0, "ms"),
        f"{case}: mlx-lm, TTFT": (500.0, "ms"),
    }
    assert [row.met for row in rows] == [None, None, True, None, None]


def test_stock_kernels_are_not_replaced(stand_in: type[StandIn]) -> None:
    kernels, *others = (kernels for kernels, _ in generation_mlx.choices())
    assert "LD_PRELOAD" not in kernels.env and all("LD_PRELOAD" in one.env for one in others)
    assert [one.threads for one in others] == sorted({1, generation_mlx.cpus()})


@pytest.mark.parametrize("script", ["own_mlx", "mlx_lm"])
def test_who_cannot_start_is_named(
    stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    stand_in.refuses = script
    rows = generation_mlx.generation_mlx(tmp_path, 1, home=tmp_path)
    assert len(rows) == len({row.name for row in rows})
    assert {row.reason for row in rows} == {f"{script} can't start"}
    assert all(row.aim == AIM and row.met is None for row in rows)


def test_without_openblas_a_reason_is_given(
    stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(generation_mlx, "find_library", lambda name: None)
    rows = generation_mlx.generation_mlx(tmp_path, 1, home=tmp_path)
    missing = [row for row in rows if row.reason]
    assert missing and all("no libopenblas" in row.reason for row in missing)
    assert len(rows) - len(missing) == 5 * len(STOCK_LOADS)
    assert {len(load.prompt_lens) for load in STOCK_LOADS} == {1, 4, 16}
    assert {len(load.prompt_lens) for load in LOADS} == {1, 4, 16}


def test_prompts_differ_and_are_as_long_as_they_should_be() -> None:
    for load in (*STOCK_LOADS, *LOADS):
        prompts: Any = load.question["prompts"]
        assert tuple(map(len, prompts)) == load.prompt_lens
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("script", [own_mlx, mlx_lm])
def test_each_process_generates_all_tokens(script: Any, tiny_llama: Path) -> None:
    measure = script.start({"folder": str(tiny_llama)})
    answer = measure({"prompts": [[5, 6, 7], [8, 9]], "new_tokens": 6})
    assert 0 < answer["ttft"] <= answer["seconds"]
