"""``minisched compare``: serial against other loops, verdict and pictures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ..comparison import Comparison, compare_loops
from ..core import Request
from ..devices.registry import open_device
from ..loops.design import find_loop, wanted_features
from ..loops.run import RunStopped
from ..models.base import Model
from ..scheduler import SchedulerConfig
from . import advice
from .compare_json import comparison_json
from .exit import complain
from .layout import say
from .loop_choice import choose_loops
from .options import ReportOptions, WorkloadOptions
from .pictures import write_pictures, write_traces
from .progress import token_progress
from .report import print_errors, print_report
from .room import make_config
from .scheduler_options import SchedulerOptions

DIFFERENT, BAD_INPUT = 1, 2  # exit codes


def run_compare(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    wanted: ReportOptions,
    loops: str | None,
    out: Path,
    with_tokens: bool,
) -> int:
    """Compare, report and draw; returns the exit code: 0, 1 if not identical, 2 on bad input.

    Where a run stops with an error it is 1, too, and the traces so far are written.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    asked = [] if loops is None else [name.strip() for name in loops.split(",")]
    names = choose_loops(asked, workload.device, scheduler.disable_overlap_schedule)
    open_device(workload.device).close()
    model = workload.open_model()
    requests = workload.make_requests(model)
    config = make_config(scheduler, model, requests)
    if "all" in asked:
        names = who_takes(names, wanted_features(config, requests))
    out = check_folder(out)
    try:
        comparison = compare_with_progress(workload, wanted, names, model, requests, config)
    except RunStopped as stopped:
        return report_stop(stopped, out, wanted.json)
    files = [str(path) for path in write_pictures(comparison, out)]
    if wanted.json:
        result = comparison_json(comparison, files, with_tokens)
        if wanted.advise:
            result["advice"] = {
                run.loop: advice.advice_json(run, config) for run in comparison.runs
            }
        print(json.dumps(result))
    else:
        show(comparison, config, wanted, out)
    return exit_code(comparison)


def report_stop(stopped: RunStopped, out: Path, as_json_only: bool) -> int:
    """Write what there is of the runs, and say in a sentence what to do with it."""
    files = [str(path) for path in write_traces(stopped.traces, out)]
    if as_json_only:
        print(json.dumps({"identical": False, "error": str(stopped), "files": files}))
    told, line = str(stopped).rstrip(".: "), f"minisched check {' '.join(files)}"
    return complain(f"{told}; its trace is {files[-1]}, see: {line}", DIFFERENT)


def who_takes(names: list[str], wanted: set[str]) -> list[str]:
    """The loops that take a workload; who is left out is said on stderr, with the reasons."""
    refused = {name: find_loop(name).refusal(name, wanted) for name in names}
    for sentence in filter(None, refused.values()):
        print(f"left out: {sentence}", file=sys.stderr)
    return [name for name in names if not refused[name]]


def show(comparison: Comparison, config: SchedulerConfig, wanted: ReportOptions, out: Path) -> None:
    """The report for people."""
    console = Console(highlight=False, emoji=False)
    print_report(console, comparison)
    if wanted.advise:
        advice.print_advice(console, comparison.runs, config)
    where = f"Pictures and traces are in {out}; open {out / 'compare.html'} first."
    say(console, escape(where))


def compare_with_progress(
    workload: WorkloadOptions,
    wanted: ReportOptions,
    loops: list[str],
    model: Model,
    requests: list[Request],
    config: SchedulerConfig,
) -> Comparison:
    """The comparison, with one bar for each loop; serial comes first."""
    ordered = list(dict.fromkeys(["serial", *loops]))
    total = sum(request.params.max_new_tokens for request in requests)
    with token_progress(ordered, total) as on_output, wanted.logging():
        return compare_loops(
            ordered, workload.device, model, requests, config, workload.cost(), on_output
        )


def exit_code(comparison: Comparison) -> int:
    """Says on stderr which requests ended badly, and what that means for the exit code."""
    print_errors(comparison.errors)
    if not comparison.identical:
        return DIFFERENT
    return BAD_INPUT if comparison.errors else 0


def check_folder(out: Path) -> Path:
    """The folder for pictures, made if it is not there.

    Raises:
        ValueError: it can't be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out} can't be used as a folder: {error.strerror}.") from error
    return out
