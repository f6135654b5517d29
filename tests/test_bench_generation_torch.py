"""How ``bench generation`` measures torch, and what the peers' own scripts answer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minisched.bench.generation import generation as whole
from minisched.bench.generation.generation import generation
from minisched.bench.generation.load import BATCHES, Choice
from minisched.bench.generation.on_torch import DTYPES, RIVALS, generation_torch
from minisched.bench.generation.side_by_side import Contest
from minisched.bench.peers import own_torch, transformers_static
from minisched.bench.peers.llama_cpp import Token, generate
from minisched.bench.rows import Figure

PROMPTS = [[5, 6, 7], [8, 9]]


def test_each_dtype_meets_the_aims_of_the_issue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[Contest] = []

    def figures(self: Contest, *how: object) -> list[Figure]:
        seen.append(self)
        return []

    monkeypatch.setattr(Contest, "figures", figures)
    generation_torch(tmp_path, 1, lambda doing: None, tmp_path, Choice())
    assert tuple(contest.settings["dtype"] for contest in seen) == DTYPES
    assert {len(contest.loads) for contest in seen} == {len(BATCHES)}
    assert [rival.aim for rival in RIVALS] == [1.2, 2.0, 1.0]


def test_each_device_has_its_own_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[str] = []

    def part(name: str, *given: object) -> list[Figure]:
        seen.append(name)
        return []

    monkeypatch.setattr(whole, "PARTS", {name: partial(part, name) for name in whole.PARTS})
    generation(tmp_path, 1, lambda doing: None, "mlx", Choice())
    generation(tmp_path, 1, lambda doing: None, None, Choice())
    assert seen == ["mlx", "thread", "mlx"]


def test_transformers_makes_the_tokens_that_ours_makes(tiny_llama: Path) -> None:
    settings = {"folder": str(tiny_llama), "dtype": "float32", "threads": 1}
    question = {"prompts": PROMPTS, "new_tokens": 6}
    ours, theirs = (script.start(settings)(question) for script in (own_torch, transformers_static))
    assert all(0 < answer["ttft"] <= answer["seconds"] for answer in (ours, theirs))
    assert list(map(len, ours["tokens"])) == [6, 6]
    assert ours["tokens"] == theirs["tokens"]


class Counting:
    """Stands for llama.cpp: the next token is the sum of the sequence so far."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = {}
        self.wanted = 0

    def next_tokens(self, tokens: list[Token]) -> dict[int, int]:
        for token in tokens:
            line = self.seen.setdefault(token.sequence, [])
            assert token.position == len(line)
            line.append(token.token)
            self.wanted += token.wanted
        return {token.sequence: sum(self.seen[token.sequence]) for token in tokens if token.wanted}


def test_llama_cpp_computes_every_token_once_and_in_its_place() -> None:
    stands_for: Any = Counting()
    answer = generate(stands_for, PROMPTS, 3)
    assert answer["tokens"] == [[18, 36, 72], [17, 34, 68]]
    assert stands_for.wanted == 2 * 3  # no logits are computed for nobody
    assert stands_for.seen == {0: [5, 6, 7, 18, 36], 1: [8, 9, 17, 34]}
