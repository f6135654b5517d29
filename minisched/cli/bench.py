"""``minisched bench``: what is measured, and on what workload."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..bench.generation import generation
from ..bench.hidden import Case, hidden
from ..bench.nano_vllm import find_nano_vllm
from ..bench.rows import Figure, as_json
from ..bench.scheduler import scheduler_figures
from ..devices.registry import load, open_device
from .loop_choice import overlapped_loop
from .options import WorkloadOptions
from .room import make_config
from .scheduler_options import SchedulerOptions

WORKS_MS = (5.0, 20.0)
PARTS = ("hidden", "generation", "scheduler", "mutation")
SHORTEST = 10  # tokens: fewer steps than that are all beginning and end


def run_bench(
    part: str,
    workload: WorkloadOptions,
    repetitions: int,
    as_json_only: bool,
    nano_vllm: Path | None = None,
) -> int:
    """Measure one part and print its table; returns the exit code.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    if part not in PARTS:
        raise ValueError(f"unknown part {part!r}; the parts are {', '.join(PARTS)}.")
    if repetitions < 1:
        raise ValueError(f"--repeat is {repetitions}, but it must be at least 1.")
    if nano_vllm is not None and part != "scheduler":
        raise ValueError(f"--nano-vllm is measured by bench scheduler, not by bench {part}.")
    nano, reason = find_nano_vllm(nano_vllm)
    if part == "scheduler":
        measure = partial(scheduler_figures, nano, reason)
    else:
        check_real_time(part, workload)
        measure = partial(model_figures, part, workload)
    with Console(stderr=True).status("warming up") as status:
        figures = measure(repetitions, status.update)
    if as_json_only:
        print(json.dumps(as_json(figures, {"nano-vllm": nano.version} if nano else None)))
    else:
        Console(emoji=False).print(table(figures))
    return 0


def model_figures(
    part: str, workload: WorkloadOptions, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """What is measured on a device, with a model."""
    case = make_case(workload)
    overlapped = overlapped_loop(workload.device)
    if part == "hidden":
        return hidden(case, overlapped, WORKS_MS, repetitions, report)
    folder = find_folder(workload)
    return generation(case, ("serial", overlapped), folder, repetitions, report)


def check_real_time(part: str, workload: WorkloadOptions) -> None:
    """Refuse what can't be measured.

    Raises:
        ValueError: on a virtual clock nothing is, or the other library has no such model or device.
    """
    device = open_device(workload.device)
    device.close()
    if device.clock == "virtual":
        raise ValueError(f"bench measures real time, which --device {workload.device} has none of.")
    if part == "generation" and workload.model == "hash":
        raise ValueError("generation compares real models, so --model can't be hash.")
    if part == "generation" and workload.device == "cuda":
        raise ValueError("generation is measured on --device thread and mlx only.")
    if workload.sampling.max_new_tokens < SHORTEST:
        raise ValueError(
            f"--max-new-tokens is {workload.sampling.max_new_tokens}, "
            f"but a bench needs at least {SHORTEST}."
        )


def make_case(workload: WorkloadOptions) -> Case:
    """The workload; every request runs to its length, so that all loops do the same work."""
    model = workload.open_model()
    requests = workload.make_requests(model, ignore_eos=True)
    config = make_config(SchedulerOptions(), model, requests)
    return Case(workload.device, model, requests, config)


def find_folder(workload: WorkloadOptions) -> Path:
    """Where the model's weights are, for the library it is compared with."""
    find_model = load("minisched.models.weights", "find_model", "dev", "bench generation")
    return Path(find_model(workload.model))


def table(figures: list[Figure]) -> Table:
    """Medians with their spread, and whether they are where they should be."""
    reasons = sorted({item.reason for item in figures if item.reason})
    result = Table(caption="\n".join(f"Not measured: {reason}." for reason in reasons) or None)
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
