"""``minisched sweep``: every combination of loops, costs, workloads and settings, each run once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from ..own_loops import add_loop, in_each_process
from ..sweep.grid import AIMS, read_grid
from ..sweep.sweep import Sweep, run_grid, write_table
from ..sweep.workers import Workers, num_cores
from .layout import JSON, print_json, say, say_table, work_progress
from .options import ADDRESS, BACKEND, JOBS, setting

MOST_SHOWN = 20  # rows of a table
MOST_REASONS = 5


def sweep(
    file: Path = typer.Argument(help="The grid, in TOML."),
    out: Path = setting(Path("out/sweep"), "A folder for what comes of it; a sweep in it goes on."),
    jobs: int | None = JOBS,
    backend: str = BACKEND,
    address: str = ADDRESS,
    json: bool = JSON,
) -> int:
    """Run every combination of loops, costs, workloads and settings, and print the best.

    The grid names settings; a list makes an axis. Cells that OUT already
    contains do not run again, so an interrupted sweep resumes. A cell that a
    loop or a setting refuses is stored with its reason, as is one that fails.

    aim = "ttft", and limits = {itl_p99_ms = 40}, define the best. The aim is
    ttft, itl, throughput or makespan. OUT gets sweep.csv.
    """

    loops: list[str] = []

    def register(loop: str) -> str:
        """Register a loop for the worker processes; return its name."""
        loops.append(loop)
        return add_loop(loop)

    grid = read_grid(file, register)
    cores = num_cores() if jobs is None else jobs
    workers = Workers(cores, backend, address, in_each_process(loops))
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file, but it must be a folder.")
    with work_progress(len(grid.cells)) as work:
        done = run_grid(grid, out, workers, lambda at, row: work.advance(row["state"]))
    table = write_table(done, out)
    if json:
        print_json({
            "cells": len(done.rows), "done_before": done.done_before, "states": done.states(),
            "aim": grid.aim, "limits": dict(grid.limits), "best": done.best,
            "capacity": done.capacity, "rows": done.table, "files": [str(table)],
        })  # fmt: skip
    else:
        report(done, out)
    return 1 if {"failed", "lost"} & done.states().keys() else 0


def report(sweep: Sweep, folder: Path) -> None:
    """Print the number of cells, the best of each workload, and the reasons of missing cells."""
    grid = sweep.grid
    states = ", ".join(f"{count} {state}" for state, count in sweep.states().items())
    before = f", {sweep.done_before} of them done before" if sweep.done_before else ""
    say(f"{len(grid.cells)} cells{before}: {states}.")
    if best := sweep.best:
        column, less = AIMS[grid.aim]
        axes = [name for name in grid.axes if name != "seed"]
        speedup = ["speedup"] if "serial" in grid.axes.get("loop", ()) else []
        ties = ["ties"] if any(row["ties"] for row in best) else []
        some_of(best, dict.fromkeys([*axes, column, *grid.limits, *speedup, *ties]))
        kept = f" within {', '.join(f'{k} <= {v:g}' for k, v in grid.limits.items())}"
        say(
            f"Of each workload the choice with the {'least' if less else 'most'} {column}"
            f"{kept if grid.limits else ''}; the {len(best)} that have one.",
        )
    elif "ok" in sweep.states():
        say("Nothing keeps the limits, so nothing is best.")
    if capacity := sweep.capacity:
        say("The highest rate at which a choice keeps the limits:")
        some_of(capacity, capacity[0])
    reasons = dict.fromkeys(
        f"{row['state']}: {row['reason']}" for row in sweep.rows if row["state"] != "ok"
    )
    for reason in list(reasons)[:MOST_REASONS]:
        say(f"! {reason}")
    if len(reasons) > MOST_REASONS:
        say(f"and {len(reasons) - MOST_REASONS} reasons more; column reason has them.")
    say(f"All rows and columns are in {folder}.")


def some_of(rows: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Print some columns of the first rows."""
    heads = [
        ">" * all(isinstance(row[name], int | float) for row in rows) + name.replace("_", " ")
        for name in columns
    ]
    shown = [
        ["-" if row[name] is None else f"{row[name]}" for name in columns]
        for row in rows[:MOST_SHOWN]
    ]
    more = len(rows) - MOST_SHOWN
    say_table(heads, shown, f"and {more} more; --json has them" if more > 0 else "")
