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
from .options import Options, overlapped_loop

WORKS_MS = (5.0, 20.0)
PARTS = ("hidden", "generation")
SHORTEST = 10  # tokens: fewer steps than that are all beginning and end


def run_bench(part: str, options: Options, repetitions: int, as_json_only: bool) -> int:
    """Measure one part and print its table; returns the exit code.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; the parts are {', '.join(PARTS)}.")
    if repetitions < 1:
        raise ValueError(f"--repeat is {repetitions}, but it must be at least 1.")
    check_real_time(part, options)
    case = make_case(options)
    overlapped = overlapped_loop(options.device)
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
    return 0


def check_real_time(part: str, options: Options) -> None:
    """Refuse what can't be measured.

    Raises:
        ValueError: on a virtual clock nothing is, or the other library has no such model or device.
    """
    device = open_device(options.device)
    device.close()
    if device.clock == "virtual":
        raise ValueError(f"bench measures real time, which --device {options.device} has none of.")
    if part == "generation" and options.model == "hash":
        raise ValueError("generation compares real models, so --model can't be hash.")
    if part == "generation" and options.device == "cuda":
        raise ValueError("generation is measured on --device thread and mlx only.")
    if options.sampling.max_new_tokens < SHORTEST:
        raise ValueError(
            f"--max-new-tokens is {options.sampling.max_new_tokens}, "
            f"but a bench needs at least {SHORTEST}."
        )


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
