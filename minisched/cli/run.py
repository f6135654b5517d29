"""``minisched run``: one loop, its tokens streamed as text."""

from __future__ import annotations

import json
import sys

from rich.console import Console

from ..checks.overlap import measure
from ..devices.registry import open_device
from ..loops.registry import find_loop
from ..loops.run import Run, run_loop
from .options import Options
from .report import milliseconds, print_errors
from .stream import Transcript, streaming

BAD_INPUT, INTERRUPTED = 2, 130  # exit codes


def run_run(options: Options, loop: str, as_json_only: bool) -> int:
    """Run one loop and stream its text; returns the exit code.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    find_loop(loop)
    device = open_device(options.device)
    model = options.open_model()
    requests = options.make_requests(model)
    say = Console(stderr=as_json_only, highlight=False)
    config, cost = options.make_config(model, requests), options.cost()
    transcript = Transcript(model, requests)
    with streaming(say, transcript):
        run = run_loop(loop, device, model, requests, config, cost, on_output=transcript.hear)
    report = measure(run.trace, sum(map(len, run.outputs.values())))
    if as_json_only:
        print(json.dumps({"loop": loop, "outputs": run.outputs, "errors": run.errors}))
    say.print(
        f"{report.tokens} tokens in {report.steps} steps, {milliseconds(report.makespan_ns)}; "
        f"the device was busy {report.device_busy_percent:.0f} % of the time."
    )
    return exit_code(run)


def exit_code(run: Run) -> int:
    """Says on stderr which requests ended badly, and what that means for the exit code."""
    print_errors(run.errors)
    if run.interrupted:
        print("interrupted; every request was ended and its memory given back", file=sys.stderr)
        return INTERRUPTED
    return BAD_INPUT if run.errors else 0
