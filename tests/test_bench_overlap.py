"""What ``bench overlap`` says of its runs, and that host work is done where it is said to be.

No time is asserted but that of sums: what is slow on one machine is fast on another.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from dataclasses import astuple
from itertools import groupby
from multiprocessing import active_children
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minisched.bench.arm import SETTLING, ArmStopped, running
from minisched.bench.overlap import cells as overlap_cells
from minisched.bench.overlap import shares as overlap
from minisched.bench.overlap import ways as overlap_ways
from minisched.bench.overlap.in_turn import tokens_for
from minisched.bench.overlap.shares import AIM, Cell, rows_of
from minisched.bench.overlap.step import ROUND, Step, rounds_of, typical
from minisched.bench.overlap.ways import PROCESS, PYTHON, QUICK, SERIAL, SLEEP, WAYS
from minisched.checks.overlap.overlap import forwards
from minisched.cli import bench_overlap
from minisched.cli.bench_call import BenchCall
from minisched.devices import host_work
from minisched.devices.cost import SIM_COST
from minisched.devices.host_work import done_by, spend
from minisched.devices.registry import open_device
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.hash_torch import HashTorch

times = st.floats(0.01, 100.0)


@pytest.fixture(autouse=True)
def nobody_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests, threads would do little but take the lock from each other."""
    monkeypatch.setattr(overlap, "QUICK_S", 0.001)


@given(host=times, device=times, share=st.floats(0.0, 1.0))
def test_what_is_hidden_is_a_share_of_what_could_be(
    host: float, device: float, share: float
) -> None:
    serial, hideable = host + device, min(host, device)
    assume(abs(hideable - 1.0) > 1e-6)
    taken = serial - share * hideable
    rows = {
        row.name: row
        for row in rows_of(
            "it",
            {
                SERIAL: [Step(serial, device, host, 0.0)],
                PYTHON: [Step(taken, device, host, hideable / 4)],
                QUICK: [Step(taken, device, host, hideable / 4)],
                **{PROCESS: [], SLEEP: []},
            },
        )
    }
    assert len(rows) == 8
    assert rows["it: side by side"].median == pytest.approx(25.0)
    assert rows["it: side by side"].aim is None  # it does not tell what that costs
    assert rows["it: host"].median == pytest.approx(host)
    assert rows["it: hidden"].median == pytest.approx(100 * share, abs=1e-6)
    assert rows["it: hidden"].aim == (AIM if hideable > 1.0 else None)
    over = rows["it: makespan / max(host, device)"].median
    speed = rows["it: speed-up / ideal"].median
    assert over and speed and over * speed == pytest.approx(1.0)
    assert over == pytest.approx(taken / max(host, device))


def test_the_lock_and_the_cores_are_told_apart() -> None:
    taken = {
        way: [Step(whole, 21.5, 20.0, 9.0)]
        for way, whole in {PYTHON: 31.0, QUICK: 22.0, PROCESS: 24.0, SLEEP: 20.0}.items()
    }
    taken[SERIAL] = [Step(40.0, 20.0, 20.0, 0.0)]
    found = {row.name: row for row in rows_of("it", taken)}
    rows = {name: row.median for name, row in found.items()}
    assert rows["it: the lock costs"] == 7.0 and rows["it: the cores cost"] == 4.0
    assert rows["it: hidden"] == pytest.approx(45.0)
    assert rows["it: hidden, taking the lock after 0.005 ms"] == pytest.approx(90.0)
    assert rows["it: hidden, by a worker process"] == pytest.approx(80.0)
    assert rows["it: hidden, by a sleep"] == pytest.approx(100.0)
    assert rows["it: device, longer beside the host"] == 1.5
    assert found["it: hidden, by a worker process"].reason == "the cores cost 4.0 ms"
    assert found["it: hidden"].reason == (
        "beside the host the device takes 1.5 ms longer; the lock costs 7.0 ms, and the cores 4.0"
    )


@pytest.mark.parametrize(
    ("shares", "met"),
    [
        ([95, 100, 99, 70, 120], True),  # four of five
        ([95, 100, 80, 70, 120], None),
        ([89, 20, 95, -5, 50], False),
        ([89, 20, 95, 95, 50], None),
        ([89], False),
        ([90], True),
    ],
)
def test_runs_that_disagree_tell_nothing(shares: list[float], met: bool | None) -> None:
    serial, ideal = [30.0] * len(shares), [20.0] * len(shares)
    serial[-1], ideal[-1] = 33.0, 23.0
    taken = [whole - share / 10 for whole, share in zip(serial, shares, strict=True)]
    row = overlap.hidden("it", serial, ideal, taken, "so it is")
    alone = f"serial steps alone from {min(serial):.1f} to 33.0 ms, of which 10.0 could be hidden"
    reason = {True: "", False: "so it is", None: f"not told: {alone}"}
    assert (row.met, row.reason) == (met, reason[met])
    assert row.median == pytest.approx(sorted(shares)[len(shares) // 2])


def test_a_step_that_takes_seconds_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    hash_model: Any = HashTorch()
    monkeypatch.setattr(overlap_cells, "SLOW_S", 0.0)
    cells = overlap_cells.make_cells("it", "thread", hash_model, 1, "overlap")
    (row,) = overlap.overlap_figures(cells, {}, 2, lambda doing: None)
    assert row.name == "it: hidden" and row.median is None and row.met is None
    assert row.reason.startswith("a step takes 0.0 s, and 20 ms are ")


def test_repetitions_go_through_all_cells_and_every_one_has_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def side_by_side(cell: Cell, ways: object) -> dict[str, Step]:
        asked.append(cell.work_ms)
        chosen = WAYS if cell.work_ms else WAYS[:3]
        return {way: Step(10.0 + cell.work_ms, 6.0, 4.0 + cell.work_ms, 0.0) for way in chosen}

    monkeypatch.setattr(overlap, "side_by_side", side_by_side)
    hash_model: Any = HashTorch()
    case = overlap_cells.make_case("thread", hash_model, 2, 4)
    cells = [Cell(f"{work} ms", case, "overlap", work, 3) for work in (0.0, 5.0)]
    said: list[str] = []
    rows = overlap.overlap_figures(cells, dict.fromkeys(WAYS, print), 2, said.append)
    assert asked == [0.0, 5.0] * 2
    assert said[:2] == ["0.0 ms, repetition 1 of 2", "5.0 ms, repetition 1 of 2"]
    names = [row.name for row in rows]
    assert len(names) == len(set(names)) == 8 + 12
    assert {row.median for row in rows if row.name.endswith(": host")} == {4.0, 9.0}


def test_a_cell_that_fails_costs_its_own_rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def side_by_side(cell: Cell, ways: object) -> dict[str, Step]:
        if cell.name == "bad":
            raise ArmStopped("serial has nothing to run: r0: it was lost")
        return dict.fromkeys(WAYS, Step(10.0, 6.0, 4.0, 0.0))

    monkeypatch.setattr(overlap, "side_by_side", side_by_side)
    hash_model: Any = HashTorch()
    case = overlap_cells.make_case("thread", hash_model, 2, 4)
    cells = [Cell(name, case, "overlap", 5.0, 3) for name in ("bad", "good")]
    bad, *good = overlap.overlap_figures(cells, dict.fromkeys(WAYS, print), 2, print)
    assert bad.name == "bad: hidden" and bad.median is None and "it was lost" in bad.reason
    assert len(good) == 12 and all(row.name.startswith("good") for row in good)


@given(work=st.sampled_from([0.0, 1.0]), rounds=st.integers(1, 3), batch=st.integers(1, 3))
@settings(max_examples=6)
def test_every_way_has_its_loop_and_its_work(work: float, rounds: int, batch: int) -> None:
    """The serial loop and the others take turns, and each does its work in its own way."""
    doing: list[str] = []
    hash_model: Any = HashTorch(eos_ids=frozenset())
    tokens = tokens_for(rounds)
    case = overlap_cells.make_case("thread", hash_model, batch, tokens)
    cell = Cell("it", case, "overlap", work, rounds)
    ways: dict[str, Any] = {way: lambda cost, way=way: doing.append(way) for way in WAYS}
    steps = overlap.side_by_side(cell, ways)
    chosen = list(WAYS) if work else list(WAYS[:3])
    assert list(steps) == chosen
    assert all(0 < step.device_ms <= step.whole_ms for step in steps.values())
    turns = [way for way, _ in groupby(doing)]
    assert turns[: len(turns) // len(chosen) * len(chosen)] == (chosen * rounds if work else [])


@given(
    steps=st.lists(st.tuples(*[st.floats(0.1, 10.0)] * 4), min_size=1, max_size=9),
    slow=st.data(),
)
def test_a_machine_that_drifts_changes_nothing_of_what_runs_beside(
    steps: list[tuple[float, float, float, float]], slow: st.DataObject
) -> None:
    """Each round may be any number of times slower, for both loops: a step stays as it was."""
    factors = slow.draw(st.lists(st.floats(0.2, 5.0), min_size=len(steps), max_size=len(steps)))
    one = Step(*steps[0])
    serial = [Step(8.0, 4.0, 4.0, 0.0).times(factor) for factor in factors]
    found = typical([one.times(factor) for factor in factors], serial)
    speed = median(step.whole_ms for step in serial) / 8.0
    assert astuple(found.times(1 / speed)) == pytest.approx(astuple(one))


@pytest.mark.parametrize(("loop", "percent"), [("serial", 0.0), ("overlap", 100.0)])
def test_what_ran_side_by_side_is_read_off_the_trace(loop: str, percent: float) -> None:
    """On ``sim``, where a step of the host is shorter than the device's: all of it is hidden."""
    model: Any = HashModel()
    case = overlap_cells.make_case("sim", model, 2, SETTLING + 3 * ROUND)
    config, requests = case.config, list(case.requests)
    run = run_loop(loop, open_device("sim"), model, requests, config, SIM_COST)
    first, *others = rounds_of(run.trace, 3)
    assert 0 < first.host_ms < first.device_ms <= first.whole_ms
    assert first.beside_percent == pytest.approx(percent)
    assert len(others) == 2
    for step in others:
        assert astuple(step) == pytest.approx(astuple(first), rel=0.1)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_step_that_counts_is_a_decode_of_the_whole_batch(batch: int) -> None:
    """Every step of a round has all requests, and nobody has ended."""
    hash_model: Any = HashTorch(eos_ids=frozenset())
    rounds = 3
    tokens = tokens_for(rounds)
    case = overlap_cells.make_case("thread", hash_model, batch, tokens)
    with running(case, "overlap") as arm:
        arm.go_on(rounds * ROUND)
        steps = forwards(arm.finish().trace)
    assert len(steps) >= tokens
    counted = steps[SETTLING : SETTLING + rounds * ROUND]
    assert all(item.mode == "decode" and len(item.rids) == batch for item in counted)


def test_work_is_done_the_way_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    with done_by(done.append):
        spend(7)
        spend(0)
    rounds: list[int] = []
    host_work.nanoseconds_per_round()  # measured once, and not with a stand-in
    monkeypatch.setattr(host_work, "work", rounds.append)
    spend(1_000_000)
    assert done == [7] and len(rounds) == 1


def test_a_sleep_is_as_long_as_the_work_was_last(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, slept = overlap_ways.Alone(), []
    monkeypatch.setattr(overlap_ways, "compute", lambda cost: time.sleep(3 * cost / 1e9))
    alone(2_000_000)
    monkeypatch.setattr(overlap_ways.time, "sleep", slept.append)
    alone.sleep(10_000_000)
    assert slept[0] >= 0.03


def test_the_worker_process_is_another_one_and_ends() -> None:
    with overlap_ways.ways() as doing:
        assert tuple(doing) == WAYS
        doing[PROCESS](100_000)
        doing[PROCESS](1_000)
        (worker,) = active_children()
        assert worker.pid != os.getpid()
    assert not worker.is_alive()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (BenchCall("overlap", device="sim"), "--device is 'sim'"),
        (BenchCall("overlap", model="hash"), "--model can't be hash"),
        (BenchCall("overlap", model="nobody"), "No model 'nobody'"),
        (BenchCall("overlap", requests=0), "--requests is 0"),
        (BenchCall("overlap", max_new_tokens=5), "--max-new-tokens is of no use"),
    ],
)
def test_a_bad_option_is_one_sentence(call: BenchCall, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        bench_overlap.measure(call)


def test_options_choose_cells_and_an_absent_device_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        bench_overlap, "absent", lambda device: "there is none" if device == "cuda" else ""
    )
    monkeypatch.setattr(bench_overlap, "overlap_figures", lambda cells, *rest: cells)
    monkeypatch.setattr(bench_overlap, "make_cells", lambda title, *rest: [title])
    monkeypatch.setattr(bench_overlap, "opened", lambda *which: nullcontext())
    found: list[Any] = bench_overlap.measure(BenchCall("overlap"))
    absent = [row for row in found if not isinstance(row, str)]
    assert [row.reason for row in absent] == ["there is none"] * 2
    assert len(found) == 2 * 2 * 3 + 2
    found = bench_overlap.measure(BenchCall("overlap", device="mlx", model="small", requests=5))
    assert found == ["mlx, small, batch 5"]


def test_one_cell_from_the_command_line(
    cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(overlap_cells, "WORKS_MS", (0.0, 1.0))
    monkeypatch.setattr(overlap_cells, "MEASURE_S", 0.0)
    code, out, _ = cli("bench overlap --device mlx --model small --requests 2 --repeat 1 --json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert len(rows) == 8 + 12 and all(row["median"] is not None for row in rows)
