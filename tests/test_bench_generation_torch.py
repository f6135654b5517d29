"""How ``bench generation`` measures torch: processes in turn, and a reason for who is missing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from minisched.bench.generation import on_torch as module
from minisched.bench.generation.generation import generation
from minisched.bench.generation.on_mlx import Load
from minisched.bench.generation.on_torch import OURS, OVERLAPPED, PEERS, generation_torch
from minisched.bench.peers.peer import PeerError
from minisched.bench.rows import Figure

LOAD = Load((3, 5), 4)


class Stand:
    """Stands for a process: ours takes a second, others two; llama.cpp breaks at a question."""

    asked: ClassVar[list[str]] = []

    def __init__(self, python: Path, script: str, settings: Any, env: Any) -> None:
        self.script = script
        self.name = f"{script} {settings['loop']}" if "loop" in settings else script
        self.dtype, self.threads = settings["dtype"], settings["threads"]

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, question: Any) -> dict[str, float]:
        assert list(map(len, question["prompts"])) == [3, 5] and question["new_tokens"] == 4
        if self.script == "llama_cpp":
            raise PeerError("llama_cpp: it broke.")
        warm = self.name in self.asked
        self.asked.append(self.name)
        seconds = 1.0 if self.script == "own_torch" else 2.0
        return {"seconds": seconds, "ttft": 0.5 if warm else 9.0}


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    def environment(name: str, home: Path, report: Any) -> Path:
        return Path("python")

    Stand.asked = []
    monkeypatch.setattr(module, "Peer", Stand)
    monkeypatch.setattr(module, "environment", environment)
    taken = generation_torch(tmp_path, 2, home=tmp_path, dtypes=("float32",), loads=(LOAD,))
    return {row.name.removeprefix(f"float32, {LOAD.name}: "): row for row in taken}


def test_processes_take_turns_after_a_question_that_nobody_times(rows: dict[str, Any]) -> None:
    once = ["own_torch serial", "own_torch overlap", "transformers_static"]
    assert Stand.asked == [*once, "transformers_continuous"] * 3
    assert rows[OURS].median == rows[OVERLAPPED].median == 8.0
    assert rows["transformers static"].median == 4.0
    first = rows["transformers static, TTFT"]
    assert first.min == first.max == 500.0


def test_ours_over_theirs_has_the_aim_of_each(rows: dict[str, Any]) -> None:
    assert [peer.aim for peer in PEERS] == [1.2, 2.0, 1.0]
    static, continuous = (rows[f"{OURS} / transformers {k}"] for k in ("static", "continuous"))
    assert static.median == continuous.median == 2.0 and static.met and continuous.met


def test_a_peer_that_breaks_is_told_with_its_reason(rows: dict[str, Any]) -> None:
    row = rows[f"{OURS} / llama.cpp"]
    assert row.median is None and row.reason == "llama_cpp: it broke"
    assert "llama.cpp" not in rows


def test_each_device_has_its_own_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from minisched.bench.generation import generation as whole

    seen: list[str] = []

    def part(name: str, *given: object) -> list[Figure]:
        seen.append(name)
        return []

    monkeypatch.setattr(whole, "PARTS", {name: partial(part, name) for name in whole.PARTS})
    generation(tmp_path, 1, device="mlx")
    generation(tmp_path, 1)
    assert seen == ["mlx", "thread", "mlx"]
