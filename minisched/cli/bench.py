"""``minisched bench``: measures one part, prints its table and keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..bench.kept import keep
from ..bench.rows import Figure, as_json
from ..bench.scheduling.nano_vllm import version_of
from .bench_call import BenchCall
from .bench_parts import find_part


def run_bench(call: BenchCall, as_json_only: bool) -> int:
    """Measure one part, print its table, keep it under ``traces/bench``; returns the exit code.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    measure = find_part(call.part)
    if call.repetitions < 1:
        raise ValueError(f"--repeat is {call.repetitions}, but it must be at least 1.")
    with Console(stderr=True).status("warming up") as status:
        figures = measure(replace(call, report=status.update))
    document = as_json(figures, peer_versions(call.nano_vllm))
    written = keep(call.part, document, Path.cwd())
    if as_json_only:
        print(json.dumps(document))
        return 0
    Console(emoji=False).print(table(figures))
    for path in written:
        Console(stderr=True).print(f"written: {path}", highlight=False)
    return 0


def peer_versions(nano_vllm: Path | None) -> dict[str, str]:
    """Versions of peers that no installer knows."""
    return {"nano-vllm": version_of(nano_vllm)} if nano_vllm else {}


def table(figures: list[Figure]) -> Table:
    """Medians with their spread, and whether they are where they should be."""
    reasons = sorted(
        {
            f"{'Not measured' if item.median is None else item.name}: {item.reason}."
            for item in figures
            if item.reason
        }
    )
    result = Table(caption="\n".join(reasons) or None)
    for column in ("what", "median", "min", "max", "unit", "aim", "met"):
        result.add_column(column, justify="right" if column in ("median", "min", "max") else "left")
    for item in figures:
        values = (item.median, item.min, item.max)
        numbers = ("-" if value is None else f"{value:.2f}" for value in values)
        bound = "at most" if item.at_most else "at least"
        aim = "" if item.aim is None else f"{bound} {item.aim:g}"
        met = {None: "", True: "yes", False: "no"}[item.met]
        result.add_row(item.name, *numbers, item.unit, aim, met)
    return result
