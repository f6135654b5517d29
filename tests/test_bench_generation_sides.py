"""How ``bench generation`` measures: processes in turn, and a reason for who is missing.

No time is asserted: what is slow on one machine is fast on another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, ClassVar, Self

import pytest

from minisched.bench.generation import side_by_side as module
from minisched.bench.generation.load import BATCHES, LENGTHS, Choice, Load
from minisched.bench.generation.side_by_side import OURS, Contest, Rival, equal_share
from minisched.bench.peers import environment as peer_environment
from minisched.bench.peers.peer import PeerError
from minisched.bench.rows import Figure

LOAD, OTHER = Load((3, 5), 4), Load((3,), 4)
RIVALS = (
    Rival("slow", "slow", "slow_peer", 1.2),
    Rival("other", "other", "other_peer", 3.0, "both wait for memory"),
)
WARM_UP = 2  # new tokens of the question that nobody times


class StandIn:
    """A process that answers at once: ours takes a second, others two; some break."""

    asked: ClassVar[list[str]] = []
    env: ClassVar[list[Mapping[str, str]]] = []
    breaks: ClassVar[Callable[[str, int], bool]] = staticmethod(lambda script, count: False)

    def __init__(
        self, python: Path, script: str, settings: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        self.script, self.count = script, 0
        self.env.append(env)
        self._check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.asked.append(f"{self.script} ends")

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        self.count += 1
        self._check()
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        self.asked.append(f"{self.script} {len(prompts)}x{new_tokens}")
        tokens = [[1] * new_tokens for _ in prompts]
        if self.script == "slow_peer":
            tokens[0][0] = 2
        seconds = 1.0 if self.script == "own" else 2.0
        ttft = 9.0 if new_tokens == WARM_UP else 0.5
        return {"seconds": seconds, "ttft": ttft, "tokens": tokens}

    def _check(self) -> None:
        if type(self).breaks(self.script, self.count):
            raise PeerError(f"{self.script} broke.")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    class Fresh(StandIn):
        asked: ClassVar[list[str]] = []
        env: ClassVar[list[Mapping[str, str]]] = []

    monkeypatch.setattr(module, "Peer", Fresh)
    monkeypatch.setattr(module, "environment", lambda *which: Path("python"))
    return Fresh


def figures(*loads: Load) -> dict[str, Figure]:
    contest = Contest("case", "own", RIVALS, {}, {}, loads)
    rows = contest.figures(2, lambda doing: None, Path("home"))
    assert len(rows) == len({row.name for row in rows})
    return {row.name.removeprefix("case, "): row for row in rows}


def test_processes_take_turns_after_a_question_that_nobody_times(stand_in: type[StandIn]) -> None:
    rows = figures(LOAD)
    all_three = ["own 2x4", "slow_peer 2x4", "other_peer 2x4"]
    warm_ups = [asked.replace("x4", f"x{WARM_UP}") for asked in all_three]
    ends = ["other_peer ends", "slow_peer ends", "own ends"]
    assert stand_in.asked == [*warm_ups, *all_three, *all_three, *ends]
    assert all(row.min == row.median == row.max for row in rows.values())
    case = "batch 2, prompts of 3 to 5, 4 new"
    assert {name: (row.median, row.unit, row.met) for name, row in rows.items()} == {
        f"{case}: {OURS}": (8.0, "tokens/s", None),
        f"{case}: slow": (4.0, "tokens/s", None),
        f"{case}: other": (4.0, "tokens/s", None),
        f"{case}: {OURS} / slow": (2.0, "ratio", True),
        f"{case}: {OURS} / other": (2.0, "ratio", False),
        f"{case}: {OURS}, TTFT": (500.0, "ms", None),
        f"{case}: slow, TTFT": (500.0, "ms", None),
        f"{case}: other, TTFT": (500.0, "ms", None),
        f"{case}: slow, tokens equal to ours": (7 / 8, "share", None),
        f"{case}: other, tokens equal to ours": (1.0, "share", None),
    }


def test_only_a_missed_aim_is_explained(stand_in: type[StandIn]) -> None:
    rows = figures(LOAD)
    assert {name: row.reason for name, row in rows.items() if row.reason} == {
        f"{LOAD.name}: {OURS} / other": "both wait for memory"
    }


def test_an_environment_that_cannot_be_made_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def create(folder: Path, **options: bool) -> None:
        raise CalledProcessError(1, ["ensurepip"])

    monkeypatch.setattr("venv.create", create)
    with pytest.raises(PeerError, match=r"mlx-lm-.* can't be made below .*peers: .*ensurepip"):
        peer_environment.environment("mlx-lm", tmp_path)


@pytest.mark.parametrize("count", [0, 1, 2, 3], ids=["start", "warm-up", "first", "last"])
def test_a_rival_that_breaks_is_told_with_its_reason(stand_in: type[StandIn], count: int) -> None:
    stand_in.breaks = staticmethod(lambda script, at: (script, at) == ("slow_peer", count))
    rows = figures(LOAD)
    row = rows[f"{LOAD.name}: {OURS} / slow"]
    assert row.median is None and row.reason == "slow_peer broke" and row.aim == 1.2
    assert rows[f"{LOAD.name}: {OURS} / other"].median == 2.0
    assert f"{LOAD.name}: slow" not in rows
    answered = [asked for asked in stand_in.asked if asked.startswith("slow_peer 2x")]
    assert len(answered) == max(0, count - 1)


def test_a_rival_that_breaks_on_one_load_is_asked_the_next(stand_in: type[StandIn]) -> None:
    stand_in.breaks = staticmethod(lambda script, at: (script, at) == ("slow_peer", 1))
    rows = figures(LOAD, OTHER)
    assert rows[f"{LOAD.name}: {OURS} / slow"].reason
    assert rows[f"{OTHER.name}: {OURS} / slow"].median == 2.0


@pytest.mark.parametrize("count", [0, 1, 2])
def test_without_ours_every_ratio_has_the_reason(stand_in: type[StandIn], count: int) -> None:
    stand_in.breaks = staticmethod(lambda script, at: (script, at) == ("own", count))
    rows = figures(LOAD)
    ratios = [row for name, row in rows.items() if f"{OURS} / " in name]
    assert [row.reason for row in ratios] == ["own broke"] * 2
    assert [row.aim for row in ratios] == [1.2, 3.0] and not any(row.at_most for row in ratios)


def test_prompts_differ_and_are_as_long_as_they_should_be() -> None:
    for load in Choice().loads():
        prompts: Any = load.question["prompts"]
        assert tuple(map(len, prompts)) == load.prompt_lens
        assert len({tuple(prompt) for prompt in prompts}) == len(prompts)


def test_one_batch_size_is_measured_where_one_is_chosen() -> None:
    assert [len(load.prompt_lens) for load in Choice().loads()] == list(BATCHES)
    (load,) = Choice(3, 9).loads()
    assert load == Load(LENGTHS[:3], 9)


def test_tokens_are_compared_place_by_place() -> None:
    assert equal_share([[1, 2], [3, 4]], [[1, 5], [3, 4]]) == 0.75
    with pytest.raises(ValueError, match="zip"):
        equal_share([[1, 2]], [[1]])
