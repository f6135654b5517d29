"""Runs of a grid's unfinished cells, their results in a folder, and the best choices.

A folder contains the state of a sweep. Each finished cell is a line of ``cells.jsonl``, written
immediately, so a sweep that ended by Ctrl-C or by a power cut resumes where it stopped. At the end,
all cells are in ``sweep.csv``, which pandas, DuckDB and spreadsheets read.

A cell without figures is stored, too. It was *refused* (by the loop or a setting), it *failed*, or
it was *lost* with its process, and a column has the reason.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from ..checks.overlap import measure
from ..defaults import config_from
from ..devices.cost import MILLISECOND
from ..engine.metrics import Metrics
from ..loops.design import find_loop, wanted_features
from ..loops.run import run_to_end
from ..models.hash import HashModel
from ..replay.profiles import DEFAULT_PROFILE, find_profile
from ..replay.replay import LengthModel, config_for, play
from ..replay.trace_file import TraceFile
from ..trace.files import write_whole
from .grid import AIMS, COLUMNS, VOCAB, SweepCell, SweepGrid
from .workers import HERE, Workers, spread

FORMAT = 1  # of a line; a cell in another format runs again
STATES = ("ok", "refused", "failed", "lost")

# -- One cell --------------------------------------------------------------------------------------


def run_cell(cell: SweepCell) -> dict[str, Any]:
    """Run a cell in this process; return its columns, also those of an error."""
    began = perf_counter()
    try:
        found = {"state": "ok", "reason": "", **_figures(cell)}
    except ValueError as error:
        found = {"state": "refused", "reason": str(error)}
    except Exception as error:  # a cell must not end the sweep
        found = {"state": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {**found, "seconds": round(perf_counter() - began, 6)}


def lost_cell(cell: SweepCell, reason: str) -> dict[str, Any]:
    """Return the columns of a cell that died with its process."""
    return {"state": "lost", "reason": reason, "seconds": 0.0}


def _figures(cell: SweepCell) -> dict[str, Any]:
    """Return the columns of a run.

    Raises:
        ValueError: the loop or the settings refuse it, or a request was refused.
    """
    if cell["trace"]:
        return _replayed(cell)
    loop = cell["loop"].partition(":")[0]
    requests, model = cell.requests(), HashModel(VOCAB, 2**20, eos_ids=cell.eos_ids)
    config = config_from(cell.config, requests, model.context_len)
    if problem := find_loop(loop).refusal(loop, wanted_features(config, requests)):
        raise ValueError(problem)
    run = run_to_end(cell["loop"], "sim", model, requests, config, cell.cost)
    for rid, error in run.errors.items():
        raise ValueError(f"request {rid}: {error}")
    report, tokens = measure(run.trace), sum(map(len, run.outputs.values()))
    per_s, busy = tokens * 1e9 / max(1, report.makespan_ns), report.device_busy_percent
    found = _columns(run.metrics, report.makespan_ns, report.steps, per_s, busy)
    return {**found, "tokens": tokens, "wasted_rows": report.wasted_rows}


def _replayed(cell: SweepCell) -> dict[str, Any]:
    """Return the columns of a replay, without those that count tokens or wasted rows.

    Raises:
        ValueError: the file, the loop or the settings are bad, or a request was refused.
    """
    profile = find_profile(cell["profile"] or DEFAULT_PROFILE)
    trace = TraceFile(Path(cell["trace"]), cell["trace_requests"])
    survey = trace.survey()
    config = config_for(survey, profile, cell.config)
    model = LengthModel(survey.num_ids, survey.requests, survey.longest)
    run = play(cell["loop"], model, trace.requests(survey), config, profile.cost)
    if refused := survey.requests - run.metrics.num_finished:
        raise ValueError(f"{refused} requests were refused.")
    busy = 100 * run.device_busy
    return _columns(run.metrics, run.makespan_ns, run.num_steps, run.throughput, busy)


def _columns(
    metrics: Metrics, makespan_ns: int, steps: int, tokens_per_s: float, device_busy: float
) -> dict[str, Any]:
    """Return the columns that every run has."""
    found: dict[str, Any] = {
        "makespan_ms": in_ms(makespan_ns),
        "steps": steps,
        "tokens_per_s": round(tokens_per_s, 3),
        "device_busy": round(device_busy, 3),
    }
    for name, times in (("ttft", metrics.ttft), ("itl", metrics.itl)):
        for at in ("p50", "p99"):
            found[f"{name}_{at}_ms"] = in_ms(getattr(times, at)) if times else None
    return found


def in_ms(nanoseconds: int) -> float:
    """Return milliseconds, rounded to a microsecond."""
    return round(nanoseconds / MILLISECOND, 3)


# -- All of them -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """A grid and the results of its cells; ``rows[at]`` belongs to ``grid.cells[at]``."""

    grid: SweepGrid
    rows: Sequence[Mapping[str, Any]]
    done_before: int = 0

    def states(self) -> dict[str, int]:
        """Return the number of cells in each state that occurs."""
        counts = {state: sum(row["state"] == state for row in self.rows) for state in STATES}
        return {state: count for state, count in counts.items() if count}

    @cached_property
    def table(self) -> list[dict[str, Any]]:
        """Return a row for each cell: settings, columns, and speed-up over ``serial``."""
        serial = {
            _but_loop(cell): row["makespan_ms"]
            for cell, row in zip(self.grid.cells, self.rows, strict=True)
            if cell["loop"] == "serial" and row["state"] == "ok"
        }
        result = []
        for cell, row in zip(self.grid.cells, self.rows, strict=True):
            base, own = serial.get(_but_loop(cell)), row.get("makespan_ms")
            speedup = round(base / own, 4) if base is not None and own else None
            figures = {name: row.get(name) for name in COLUMNS}
            said = {"state": row["state"], "reason": row["reason"], "seconds": row["seconds"]}
            result.append({**cell.given, **figures, "speedup": speedup, **said})
        return result

    # -- the best choices

    @property
    def best(self) -> list[dict[str, Any]]:
        """Return, for each workload and cost, the best choice within the limits.

        Figures are means over the seeds. ``ties`` names the choices with the same figure.
        """
        column, less = AIMS[self.grid.aim]
        places = [name for name in self._axes if name not in self.grid.choices]
        found: dict[tuple[Any, ...], dict[str, Any]] = {}
        for item in self.means():
            place = tuple(item[name] for name in places)
            value, top = item[column], found.get(place, {}).get(column)
            if value is None or not self._keeps(item):
                continue
            if top is None or (value < top if less else value > top):
                found[place] = {**item, "ties": ""}
            elif value == top:
                ties, other = found[place]["ties"], self.choice_in_words(item)
                found[place]["ties"] = f"{ties}, {other}" if ties else other
        return list(found.values())

    def choice_in_words(self, row: Mapping[str, Any]) -> str:
        """Return the values of a row's choices that have several values in the sweep."""
        return " ".join(str(row[name]) for name in self._axes if name in self.grid.choices)

    @property
    def capacity(self) -> list[dict[str, Any]]:
        """Return the highest rate within the limits, by choice (vidur's capacity search).

        Empty without limits, or where the rate is no axis.
        """
        if "rate" not in self.grid.axes or not self.grid.limits:
            return []
        names = [name for name in self._axes if name != "rate"]
        highest: dict[tuple[Any, ...], float] = {}
        for item in filter(self._keeps, self.means()):
            key = tuple(item[name] for name in names)
            highest[key] = max(highest.get(key, 0.0), item["rate"])
        best_first = sorted(highest.items(), key=lambda found: -found[1])
        return [{**dict(zip(names, key, strict=True)), "rate": rate} for key, rate in best_first]

    def _keeps(self, item: Mapping[str, Any]) -> bool:
        """Return whether a choice exceeds no limit."""
        return all(
            item[name] is not None and item[name] <= most for name, most in self.grid.limits.items()
        )

    @property
    def _axes(self) -> list[str]:
        """Return the axes of workload and machine, then the choices, without the seeds."""
        choices = self.grid.choices
        return [name for name in self.grid.axes if name not in (*choices, "seed")] + choices

    def means(self) -> Iterator[dict[str, Any]]:
        """Yield each choice for each workload, with the means of its columns over the seeds.

        A choice without a run is left out.
        """
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for row in self.table:
            groups[tuple(row[name] for name in self._axes)].append(row)
        for key, rows in groups.items():
            if all(row["state"] == "ok" for row in rows):
                named = dict(zip(self._axes, key, strict=True))
                means = {n: _mean([row[n] for row in rows]) for n in (*COLUMNS, "speedup")}
                yield {**named, **means}


def _but_loop(cell: SweepCell) -> str:
    return SweepCell({name: value for name, value in cell.given.items() if name != "loop"}).key


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None


def run_grid(
    grid: SweepGrid,
    folder: Path,
    workers: Workers = HERE,
    hear: Callable[[int, Mapping[str, Any]], None] = lambda at, row: None,
) -> Sweep:
    """Run the cells that ``folder`` lacks; ``hear`` receives each finished one.

    Raises:
        ValueError: the folder can't be written, or there is no such cluster.
        KeyboardInterrupt: Ctrl-C; finished cells are stored.
    """
    path = folder / "cells.jsonl"
    done = dict(_kept(path))
    rows: list[Mapping[str, Any] | None] = [done.get(cell.key) for cell in grid.cells]
    todo = [at for at, row in enumerate(rows) if row is None]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            cells = [grid.cells[at] for at in todo]
            for at, row in spread(run_cell, cells, workers, lost_cell):
                rows[todo[at]] = row
                line = {"format": FORMAT, "cell": cells[at].given, "row": row}
                file.write(json.dumps(line) + "\n")
                file.flush()
                hear(todo[at], row)
    except OSError as error:
        raise ValueError(f"{path} can't be written: {error.strerror}.") from error
    return Sweep(grid, [row for row in rows if row is not None], len(rows) - len(todo))


def _kept(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the finished cells, by key, without incomplete lines and lost cells."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if found.get("format") == FORMAT and found["row"]["state"] != "lost":
                yield SweepCell(found["cell"]).key, found["row"]
    with path.open("rb+") as raw:  # the next line begins on its own
        raw.seek(0, os.SEEK_END)
        if raw.tell():
            raw.seek(-1, os.SEEK_END)
            if raw.read(1) != b"\n":
                raw.write(b"\n")


def write_table(sweep: Sweep, folder: Path) -> Path:
    """Write ``sweep.csv``, and return its path.

    Raises:
        ValueError: the file can't be written.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(sweep.table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(sweep.table)
    write_whole(folder / "sweep.csv", text.getvalue())
    return folder / "sweep.csv"
