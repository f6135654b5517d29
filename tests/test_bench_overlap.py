"""What ``bench overlap`` says of its runs, and that host work is done where it is said to be.

No time is asserted but that of sums: what is slow on one machine is fast on another.
"""

from __future__ import annotations

import json
import os
import time
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minisched.bench import steady
from minisched.bench.overlap import cells as overlap_cells
from minisched.bench.overlap import shares as overlap
from minisched.bench.overlap import step as overlap_step
from minisched.bench.overlap import ways as overlap_ways
from minisched.bench.overlap.shares import AIM, Cell, rows_of
from minisched.bench.overlap.step import Step
from minisched.bench.overlap.ways import PROCESS, PYTHON, SLEEP
from minisched.checks.overlap.overlap import forwards
from minisched.cli import bench_overlap
from minisched.cli.bench_call import BenchCall
from minisched.devices import host_work
from minisched.devices.cost import SIM_COST
from minisched.devices.host_work import done_by, spend
from minisched.devices.registry import open_device
from minisched.devices.thread import ThreadDevice
from minisched.loops.run import run_loop
from minisched.models.hash import HashModel
from minisched.models.hash_torch import HashTorch

times = st.floats(0.01, 100.0)


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
            [Step(serial, device, host, 0.0)],
            {PYTHON: [Step(taken, device, host, hideable / 4)], PROCESS: [], SLEEP: []},
        )
    }
    assert len(rows) == 7
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
        for way, whole in {PYTHON: 31.0, PROCESS: 24.0, SLEEP: 20.0}.items()
    }
    found = {row.name: row for row in rows_of("it", [Step(40.0, 20.0, 20.0, 0.0)], taken)}
    rows = {name: row.median for name, row in found.items()}
    assert rows["it: the lock costs"] == 7.0 and rows["it: the cores cost"] == 4.0
    assert rows["it: hidden"] == pytest.approx(45.0)
    assert rows["it: hidden, by a worker process"] == pytest.approx(80.0)
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
    cell = overlap_cells.make_cell("it", "thread", hash_model, 1, "overlap")
    (row,) = overlap.overlap_figures(cell, {}, 2, lambda doing: None)
    assert row.name == "it: hidden" and row.median is None and row.met is None
    assert row.reason.startswith("a step takes 0.0 s, and 20 ms are ")


def test_loops_take_turns_and_every_amount_has_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float, object]] = []

    def step_of(case: object, loop: str, work: float, way: object) -> Step:
        asked.append((loop, work, way))
        return Step(10.0 + work, 6.0, 4.0 + work, 0.0)

    monkeypatch.setattr(overlap, "step_of", step_of)
    monkeypatch.setattr(overlap, "warm_up", lambda *case: None)
    monkeypatch.setattr(overlap, "slowness", lambda cost: 1.5)
    monkeypatch.setattr(overlap, "stretched", lambda way, factor: f"{way} x {factor}")
    ways: dict[str, Any] = {PYTHON: "p", PROCESS: "w", SLEEP: "s"}
    hash_model: Any = HashTorch()
    case = overlap_cells.make_case("thread", hash_model, 2, 4)
    cell = Cell("it", case, "overlap", (0.0, 5.0))
    rows = overlap.overlap_figures(cell, ways, 2, lambda doing: None)
    turn = [("serial", 0.0, "p"), ("overlap", 0.0, "p"), ("serial", 5.0, "p"),
            *(("overlap", 5.0, way) for way in ("p", "w", "s x 1.5"))]  # fmt: skip
    assert asked == turn * overlap.TURNS * 2
    names = [row.name for row in rows]
    assert len(names) == len(set(names)) == 7 + 11
    assert {row.median for row in rows if row.name.endswith(": added work, alone")} == {7.5}
    assert {row.median for row in rows if row.name.endswith(": host")} == {4.0, 9.0}


@pytest.mark.parametrize(("loop", "percent"), [("serial", 0.0), ("overlap", 100.0)])
def test_what_ran_side_by_side_is_read_off_the_trace(
    loop: str, percent: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On ``sim``, where a step of the host is shorter than the device's: all of it is hidden."""

    def run_to_end(loop: str, device: str, model: Any, requests: Any, config: Any, _: Any) -> Any:
        return run_loop(loop, open_device("sim"), HashModel(), requests, config, SIM_COST)

    monkeypatch.setattr(overlap_step, "run_to_end", run_to_end)
    hash_model: Any = HashTorch()
    case = overlap_cells.make_case("thread", hash_model, 2, 4 + 2 * steady.SETTLED + 1)
    step = overlap_step.step_of(case, loop, 1.0, host_work.compute)
    assert 0 < step.host_ms < step.device_ms <= step.whole_ms
    assert step.beside_percent == pytest.approx(percent)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_settled_step_is_a_decode_of_the_whole_batch(batch: int) -> None:
    """Every step that is timed has all requests, and nobody has ended."""
    hash_model: Any = HashTorch(eos_ids=frozenset())
    steps = overlap_cells.FEWEST + 2 * steady.SETTLED + 1
    case = overlap_cells.make_case("thread", hash_model, batch, steps)
    device = ThreadDevice()
    run = run_loop("overlap", device, case.model, list(case.requests), case.config)
    settled = forwards(run.trace)[steady.SETTLED : -steady.SETTLED]
    assert len(settled) >= overlap_cells.FEWEST
    assert all(item.mode == "decode" and len(item.rids) == batch for item in settled)


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


def test_a_sleep_is_as_long_as_the_work_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    overlap_ways.stretched(asked.append, 1.7)(1_000)
    assert asked == [1_700]
    monkeypatch.setattr(overlap_ways, "compute", lambda cost: time.sleep(3 * cost / 1e9))
    assert overlap_ways.slowness(2_000_000) >= 3


def test_the_worker_process_is_another_one_and_ends() -> None:
    with overlap_ways.ways() as doing:
        assert list(doing) == [PYTHON, PROCESS, SLEEP]
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
    monkeypatch.setattr(bench_overlap, "overlap_figures", lambda cell, *rest: [cell])
    monkeypatch.setattr(bench_overlap, "make_cell", lambda title, *rest: title)
    monkeypatch.setattr(bench_overlap, "open_model", lambda name, device: None)
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
    monkeypatch.setattr(overlap_cells, "RUN_S", 0.0)
    code, out, _ = cli("bench overlap --device mlx --model small --requests 2 --repeat 1 --json")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert len(rows) == 7 + 11 and all(row["median"] is not None for row in rows)
