"""A grid's cells: what they are, that each runs once, and that no worker's death changes one."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from minisched.sweep import sweep as sweep_module
from minisched.sweep.grid import SweepCell, SweepGrid, make_grid, read_grid
from minisched.sweep.sweep import Sweep, run_cell, run_grid, write_table
from minisched.sweep.workers import HERE, Workers

AXES = {"loop": ["serial", "overlap"], "device_ms": [2, 10], "new_tokens": [1, 4]}
GRID = make_grid({"grid": {**AXES, "host_ms": 8, "requests": 2}})


def without_seconds(sweep: Sweep) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in sweep.table]


# -- cells -----------------------------------------------------------------------------------------


def test_every_combination_is_a_cell_and_the_last_axis_changes_fastest() -> None:
    told = [(cell["loop"], cell["device_ms"], cell["new_tokens"]) for cell in GRID.cells]
    assert told == [(a, b, c) for a in ("serial", "overlap") for b in (2, 10) for c in (1, 4)]
    assert len({cell.key for cell in GRID.cells}) == 8


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "there is no [grid], so there is nothing to run."),
        ({"loop": "serial"}, "loop stands at the top of the file, but it belongs below [grid]."),
        ({"kv_tokens": 9}, "kv_tokens stands at the top of the file, but it belongs below"),
        ({"grid": {"lop": ["serial"]}}, "the grid has no 'lop'; did you mean 'loop'?"),
        ({"grid": {"loop": "nope"}}, "unknown loop 'nope'"),
        ({"grid": {"loop": []}}, "loop is an empty list, so there is no cell."),
        ({"grid": {"requests": 0}}, "requests is 0, but it must be between 1 and 10000."),
        ({"grid": {"requests": 1.5}}, "requests is 1.5, but it must be a whole number: how many."),
        ({"grid": {"stop": [0, 0]}}, "stop has a value twice: [0, 0]."),
        ({"grid": {"profile": "abacus"}}, "abacus"),
        ({"grid": {"trace": "no.csv"}}, "trace is 'no.csv', but there is no such file."),
        ({"grid": {"seed": 1}, "aim": "luck"}, "aim is 'luck', but it must be one of ttft, itl,"),
        (
            {"grid": {"seed": 1}, "limits": {"ttft": 1}},
            "limits has no 'ttft'; there are makespan_ms,",
        ),
        ({"grid": {"profile": "h100-llama-8b", "host_ms": 1}}, "profile"),
    ],
)
def test_a_bad_grid_is_refused_in_a_sentence(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as error:
        make_grid(table)
    assert said in str(error.value)


def test_a_file_that_is_no_grid_is_named(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    file.write_text("loop = [", encoding="utf-8")
    with pytest.raises(ValueError, match=r"grid\.toml is no TOML"):
        read_grid(file)


# -- one cell --------------------------------------------------------------------------------------


def test_a_cell_is_the_run_that_it_names() -> None:
    row = run_cell(SweepCell({"loop": "serial", "host_ms": 8, "device_ms": 2, "new_tokens": 4}))
    assert row["state"] == "ok"
    assert (row["steps"], row["tokens"], row["makespan_ms"]) == (4 + 1, 32, 4 * 10 + 10)


def test_what_a_loop_refuses_is_kept_with_its_reason() -> None:
    row = run_cell(SweepCell({"loop": "overlap:abacus"}))
    assert row["state"] == "refused" and "unknown relay 'abacus'" in row["reason"]


def test_a_cell_that_fails_ends_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def figures(cell: SweepCell) -> Mapping[str, Any]:
        return {"makespan_ms": 1 / (cell["device_ms"] - 2)}

    monkeypatch.setattr(sweep_module, "_figures", figures)
    sweep = run_grid(GRID, tmp_path)
    assert sweep.states() == {"ok": 4, "failed": 4}
    assert {row["reason"] for row in sweep.rows} == {"", "ZeroDivisionError: division by zero"}


# -- a sweep ---------------------------------------------------------------------------------------


def test_a_sweep_that_was_broken_off_goes_on(tmp_path: Path) -> None:
    whole = run_grid(GRID, tmp_path / "whole")
    heard: list[int] = []

    def stop_after_three(at: int, row: Mapping[str, Any]) -> None:
        heard.append(at)
        if len(heard) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(GRID, tmp_path / "part", HERE, stop_after_three)
    with (tmp_path / "part" / "cells.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"format": 1, "cell": {"lo')  # as after a power cut
    later: list[int] = []
    rest = run_grid(GRID, tmp_path / "part", hear=lambda at, row: later.append(at))
    assert heard == [0, 1, 2] and later == [3, 4, 5, 6, 7] and rest.done_before == 3
    assert without_seconds(rest) == without_seconds(whole)
    assert run_grid(GRID, tmp_path / "part").done_before == 8


def test_a_grid_that_grew_runs_only_what_is_new(tmp_path: Path) -> None:
    run_grid(GRID, tmp_path)
    larger = SweepGrid({**AXES, "device_ms": [2, 10, 20]}, GRID.fixed)
    assert run_grid(larger, tmp_path).done_before == 8


def test_the_best_serves_the_aim_within_the_limits(tmp_path: Path) -> None:
    table = {"grid": {**AXES, "new_tokens": 16, "host_ms": 8, "requests": 2}, "aim": "throughput"}
    best = run_grid(make_grid(table), tmp_path).best
    assert [(item["device_ms"], item["loop"]) for item in best] == [(2, "overlap"), (10, "overlap")]
    limited = make_grid({**table, "limits": {"makespan_ms": 1}})
    assert run_grid(limited, tmp_path).best == []


def test_capacity_is_the_highest_rate_within_the_limits(tmp_path: Path) -> None:
    rates = [1, 20, 1000]
    grid = make_grid(
        {"grid": {"loop": ["serial", "overlap"], "rate": rates, "requests": 12, "new_tokens": 8},
         "limits": {"ttft_p99_ms": 60}}
    )  # fmt: skip
    sweep = run_grid(grid, tmp_path)
    kept: dict[str, list[float]] = {"serial": [], "overlap": []}
    for row in sweep.table:
        if row["ttft_p99_ms"] <= 60:
            kept[row["loop"]].append(row["rate"])
    assert {item["loop"]: item["rate"] for item in sweep.capacity} == {
        loop: max(rates) for loop, rates in kept.items() if rates
    }


def test_the_tables_hold_every_cell(tmp_path: Path) -> None:
    sweep = run_grid(GRID, tmp_path)
    file = write_table(sweep, tmp_path)
    with file.open(encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text))
    assert [row["makespan_ms"] for row in rows] == [str(r["makespan_ms"]) for r in sweep.rows]
    assert {row["speedup"] for row in rows if row["loop"] == "serial"} == {"1.0"}


def test_recorded_requests_are_a_workload(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    rows = [f"{at / 10},{64 + at},{4 + at}" for at in range(6)]
    lines = "\n".join(["arrived_at,num_prefill_tokens,num_decode_tokens", *rows, ""])
    file.write_text(lines, encoding="utf-8")
    grid = make_grid({"grid": {"trace": str(file), "loop": ["serial", "overlap"]}})
    sweep = run_grid(grid, tmp_path)
    assert sweep.states() == {"ok": 2}, sweep.rows
    assert all(row["ttft_p99_ms"] > 0 for row in sweep.rows)


# -- whoever runs it -------------------------------------------------------------------------------


def test_two_processes_fill_the_table_of_one(tmp_path: Path) -> None:
    here, there = run_grid(GRID, tmp_path / "1"), run_grid(GRID, tmp_path / "2", Workers(2))
    assert without_seconds(there) == without_seconds(here)


@pytest.mark.thorough
def test_dask_fills_the_same_table_though_a_worker_is_killed(tmp_path: Path) -> None:
    from dask.distributed import Client, LocalCluster

    grid = make_grid({"grid": {**AXES, "seed": list(range(20)), "requests": 2}})
    here = run_grid(grid, tmp_path / "here", Workers(2))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            pids = list(client.run(os.getpid).values())
        heard: list[int] = []

        def kill_one(at: int, row: Mapping[str, Any]) -> None:
            heard.append(at)
            if len(heard) == len(grid.cells) // 4:
                os.kill(pids[0], signal.SIGKILL)

        workers = Workers(2, "dask", cluster.scheduler_address)
        there = run_grid(grid, tmp_path / "there", workers, kill_one)
        with Client(cluster) as client:
            assert pids[0] not in client.run(os.getpid).values()  # it is really gone
    assert sorted(heard) == list(range(len(grid.cells)))
    assert without_seconds(there) == without_seconds(here)


def test_the_command_says_what_its_json_says(tmp_path: Path, minisched: Any) -> None:
    file = tmp_path / "grid.toml"
    file.write_text('aim = "itl"\n[grid]\nloop = ["serial", "overlap"]\nrequests = 2\n', "utf-8")
    call = ["sweep", str(file), "--out", str(tmp_path / "out"), "--jobs", "1"]
    code, said, _ = minisched(*call, "--json")
    found = json.loads(said)
    assert code == 0
    assert found["states"] == {"ok": 2} and [row["loop"] for row in found["best"]] == ["overlap"]
    assert "2 cells, 2 of them done before: 2 ok" in minisched(*call)[1]
