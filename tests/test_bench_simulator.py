"""The benches of the simulator and of tracing: who takes turns, and what is said if nobody can."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from minisched.bench import exporters, recording
from minisched.bench.arm import Arm, Spent
from minisched.bench.case import Case
from minisched.bench.peers.vidur import StandIn
from minisched.bench.rows import Figure
from minisched.bench.simulator.made_trace import make_trace
from minisched.bench.simulator.simulator import PEER, Replays, memory, open_vidur, speed
from minisched.cli import bench_simulator, bench_tracing
from minisched.cli.bench_call import BenchCall
from minisched.core import Request, SamplingParams
from minisched.devices.profiles import find_profile
from minisched.models.hash_torch import HashTorch
from minisched.scheduler import SchedulerConfig
from minisched.trace import NullRecorder, Recorder


@pytest.fixture
def replays(tmp_path: Path) -> Replays:
    make_trace(tmp_path / "trace.csv", 6)
    return Replays(tmp_path / "trace.csv", 5)


def names(figures: list[Figure]) -> list[str]:
    """What the rows are called."""
    return [item.name for item in figures]


def test_ours_and_theirs_take_turns_on_the_same_requests(replays: Replays) -> None:
    said: list[str] = []

    def ask(question: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"seconds": 2.0, "steps": 10, "requests": 5}

    figures = {item.name: item for item in speed(replays, ask, "", 2, said.append)}
    turns = [line.split(",")[0] for line in said]
    assert turns == ["minisched serial", "minisched overlap", "vidur"] * 2
    assert figures[f"{PEER}: requests"].median == 2.5 and figures[f"{PEER}: steps"].median == 5
    ours, times = (
        figures["minisched serial: steps"],
        figures[f"minisched serial / {PEER}: time for steps"],
    )
    assert ours.median and times.median and ours.min
    assert times.aim == 1.0 and times.at_most
    assert times.min == pytest.approx(5 / (ours.max or 0))


def test_without_a_peer_the_reason_stands_in_its_rows(replays: Replays) -> None:
    figures = speed(replays, None, "nobody is there", 1, print)
    missing = [item for item in figures if item.median is None]
    assert len(missing) == 4 and {item.reason for item in missing} == {"nobody is there"}
    assert all("vidur" in item.name for item in missing)


def test_a_checkout_that_can_not_be_imported_gives_a_reason(tmp_path: Path) -> None:
    with ExitStack() as stack:
        settings = {"work": str(tmp_path), "profile": "llama8b-h100"}
        ask, reason = open_vidur(stack, tmp_path, Path(sys.executable), {}, settings)
    assert ask is None and "vidur" in reason


def test_the_stand_in_costs_what_our_serial_step_does(replays: Replays) -> None:
    class Seen:
        num_processed_tokens = 100

    class Batch:
        requests = (Seen, Seen)
        num_tokens = (1, 7)

    predictor, cost = StandIn("llama8b-h100"), find_profile("llama8b-h100").cost
    host = sum(cost.host[name] for name in ("schedule", "prepare", "launch", "process", "output"))
    expected = cost.forward_rows([(100, 1), (100, 7)]) + cost.sample + cost.copy + host
    assert predictor.get_execution_time(Batch, 0).total_time == pytest.approx(expected / 1e9)
    assert predictor.num_steps == 1


def test_memory_is_asked_for_every_length_and_compared(replays: Replays) -> None:
    asked: list[int] = []

    def ask(steps: int) -> Mapping[str, Any]:
        asked.append(steps)
        return {"mib": 20 + steps, "bytes": 2**21}

    figures = memory(ask, (5, 10, 20), print)
    assert asked == [5, 10, 20]
    assert figures[-1].median == 40 / 25 and figures[-1].at_most and figures[-1].met is False
    assert figures[1].median == 2


def test_a_long_run_takes_about_the_steps_it_was_asked_for(tmp_path: Path) -> None:
    from minisched.bench.peers.long_run import run

    answer = run(600, tmp_path)
    assert 500 < answer["steps"] < 900
    assert answer["bytes"] > 100 * answer["steps"]
    assert 5 < answer["mib"] < 20_000
    assert not list(tmp_path.iterdir())


def test_bad_options_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--requests is 0, but it must be at least 1"):
        bench_simulator.measure(BenchCall("simulator", requests=0))
    with pytest.raises(ValueError, match=r"is no checkout of vidur: it lacks vidur/simulator\.py"):
        bench_simulator.measure(BenchCall("simulator", vidur=tmp_path))
    with pytest.raises(ValueError, match="--model is of no use to bench simulator"):
        bench_simulator.measure(BenchCall("simulator", model="hash"))
    with pytest.raises(ValueError, match="real time, which --device sim has none of"):
        bench_tracing.measure(BenchCall("tracing", device="sim", model="hash"))


def test_a_made_up_trace_is_the_same_each_time_and_can_be_read(tmp_path: Path) -> None:
    one, other = tmp_path / "a.csv", tmp_path / "b.csv"
    make_trace(one, 50)
    make_trace(other, 50)
    assert one.read_text() == other.read_text()
    survey = Replays(one, 50).survey
    assert survey.requests == 50 and survey.longest <= 16384


def test_recording_is_measured_with_and_without_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    params = SamplingParams(max_new_tokens=15, ignore_eos=True)
    model: Any = HashTorch(eos_ids=frozenset())
    case = Case("thread", model, [Request("a", [1, 2], params)], SchedulerConfig())
    go_on = Arm.go_on

    def noted(arm: Arm, turns: int) -> Spent:
        asked.append(type(arm.engine.device.recorder).__name__)
        return go_on(arm, turns)

    monkeypatch.setattr(Arm, "go_on", noted)
    figures = recording.recording(case, "overlap", 2, print)
    one, other = Recorder.__name__, NullRecorder.__name__
    rounds = [one, one, other, other] * 2
    assert asked == [one, other, *rounds] * 2  # the prompts first
    assert [item.unit for item in figures] == ["ms", "ms", "ratio", "% of a step"]
    assert [(item.aim, item.at_most) for item in figures[2:]] == [(1.03, True), (3.0, True)]


def test_what_recording_adds_is_told_from_a_machine_that_drifts() -> None:
    """Each round may be slower than the next, for both; a repetition is the median of rounds."""
    pairs = [
        (Spent(round(1020 * slow), 320), Spent(1000 * slow, 300)) for slow in (1_000, 2_000, 5_000)
    ]
    *steps, by_the_clock, own = recording.rows_of("it", [pairs, pairs])
    assert [row.median for row in steps] == pytest.approx([0.51, 0.5])
    assert by_the_clock.median == pytest.approx(1.02) and by_the_clock.met
    assert own.median == pytest.approx(20 / 20_000)
    slower = [(Spent(2_200_000, 0), Spent(2_000_000, 0))]
    row = recording.rows_of("it", [slower, slower])[2]
    assert not row.met and row.reason == "steps not recorded take 0.5 to 0.5 ms"


def test_every_exporter_is_measured() -> None:
    figures = exporters.exporters(600, 1, print)
    drawn = " ".join(names(figures))
    for name in ("native JSON", "Chrome", "SVG", "text", "HTML", "timing", "sequence"):
        assert name in drawn
    assert all(item.median for item in figures)
