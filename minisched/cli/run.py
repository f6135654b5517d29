"""``minisched run``: one loop, its tokens streamed as text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console

from ..checks.drafts import count_drafts
from ..checks.overlap.overlap import measure
from ..comparison import milliseconds
from ..devices.registry import open_device
from ..loops.run import Run, run_loop
from . import advice, logprobs, request_metrics
from .compare_json import drafts_as_json
from .layout import Fitted
from .loop_choice import choose_loops
from .options import ReportOptions, WorkloadOptions
from .report import print_errors
from .room import make_config
from .scheduler_options import SchedulerOptions
from .stream import Transcript, streaming

BAD_INPUT, INTERRUPTED = 2, 130  # exit codes


def run_run(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    wanted: ReportOptions,
    asked: Sequence[str],
) -> int:
    """Run one loop and stream its text; returns the exit code.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    loop, *more = choose_loops(asked, workload.device, scheduler.disable_overlap_schedule)
    if more:
        raise ValueError(f"--loop all is {1 + len(more)} loops, but run takes exactly one.")
    device = open_device(workload.device)
    model = workload.open_model()
    requests = workload.make_requests(model)
    config, cost = make_config(scheduler, model, requests), workload.cost()
    say = Console(stderr=wanted.json, highlight=False, emoji=False)
    transcript = Transcript(model, requests)
    with streaming(say, transcript), wanted.logging():
        run = run_loop(loop, device, model, requests, config, cost, on_output=transcript.hear)
    if wanted.json:
        about = {"loop": loop, "dtype": run.trace.dtype}
        result = {**about, "outputs": run.outputs, "errors": run.errors}
        result["requests"] = request_metrics.metrics_json(run.metrics)
        result |= drafts_as_json(run)
        if workload.return_logprob:
            result["logprobs"] = logprobs.logprobs_json(run.requests)
        advised = {"advice": advice.advice_json(run, config)} if wanted.advise else {}
        print(json.dumps(result | advised))
    logprobs.print_logprobs(say, model, run.requests)
    say.print(Fitted(request_metrics.table(run.metrics)))
    if wanted.advise and not wanted.json:
        advice.print_advice(say, [run], config)
    if drafts := count_drafts(run.trace):
        say.print(f"{run.loop}: {drafts}.")
    say.print(summary(run))
    return exit_code(run)


def summary(run: Run) -> str:
    """One sentence on how long it took, and with which loop."""
    report = measure(run.trace, sum(map(len, run.outputs.values())))
    computed = f" in {run.trace.dtype}" * bool(run.trace.dtype)
    return (
        f"{report.tokens} tokens in {report.steps} steps of the loop {run.loop}{computed}, "
        f"{milliseconds(report.makespan_ns)}; "
        f"the device was busy {report.device_busy_percent:.0f} % of the time."
    )


def exit_code(run: Run) -> int:
    """Says on stderr which requests ended badly, and what that means for the exit code."""
    print_errors(run.errors)
    if run.interrupted:
        print("interrupted; every request was ended and its memory given back", file=sys.stderr)
        return INTERRUPTED
    return BAD_INPUT if run.errors else 0
