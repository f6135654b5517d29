"""``minisched bench``: what is measured, and on what workload."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..bench.generation import generation
from ..bench.hidden import Case, hidden
from ..bench.rows import Figure, as_json
from ..devices.registry import load, open_device
from .options import Options

WORKS_MS = (5.0, 20.0)
PARTS = ("hidden", "generation")


def run_bench(part: str, options: Options, repetitions: int, as_json_only: bool) -> None:
    """Measure one part and print its table.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; the parts are {', '.join(PARTS)}.")
    if repetitions < 1:
        raise ValueError(f"--repeat is {repetitions}, but it must be at least 1.")
    if part == "generation" and options.model == "hash":
        raise ValueError("generation compares real models, so --model can't be hash.")
    open_device(options.device).close()
    case = make_case(options)
    overlapped = "mlx_async" if options.device == "mlx" else "overlap"
    with Console(stderr=True).status("warming up") as status:
        if part == "hidden":
            figures = hidden(case, overlapped, WORKS_MS, repetitions, status.update)
        else:
            folder = find_folder(options)
            loops = ("serial", overlapped)
            figures = generation(case, loops, folder, repetitions, status.update)
    if as_json_only:
        print(json.dumps(as_json(figures)))
    else:
        Console().print(table(figures))


def make_case(options: Options) -> Case:
    """The workload; every request runs to its length, so that all loops do the same work."""
    sampling = replace(options.sampling, ignore_eos=True)
    options = replace(options, sampling=sampling)
    model = options.open_model()
    requests = options.make_requests(model)
    return Case(options.device, model, requests, options.make_config(model, requests))


def find_folder(options: Options) -> Path:
    """Where the model's weights are, for the library it is compared with."""
    find_model = load("minisched.models.weights", "find_model", "dev", "bench generation")
    return Path(find_model(options.model))


def table(figures: list[Figure]) -> Table:
    """Medians with their spread."""
    result = Table()
    for column in ("what", "median", "min", "max", "unit"):
        result.add_column(column, justify="left" if column in ("what", "unit") else "right")
    for item in figures:
        numbers = (f"{value:.2f}" for value in (item.median, item.min, item.max))
        result.add_row(item.name, *numbers, item.unit)
    return result
