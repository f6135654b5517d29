"""``minisched run``: one loop, its tokens streamed as text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..checks.answers import count_drafts
from ..checks.overlap import measure
from ..comparison import milliseconds
from ..core import Output, Request
from ..devices.registry import open_device
from ..loops.run import run_loop
from ..models.base import Model
from ..models.tokenizer import StreamDecoder
from .exit import BAD_INPUT, INTERRUPTED
from .layout import print_json, say
from .options import (
    ReportOptions,
    SchedulerOptions,
    WorkloadOptions,
    choose_loops,
    with_option_groups,
)
from .report import drafts_as_json, logprobs_json, metrics_json, print_errors, say_metrics


@with_option_groups
def run(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    report: ReportOptions,
    loop: Annotated[
        list[str] | None, typer.Option(help="The loop; overlap, or mlx_async on mlx.")
    ] = None,
) -> int:
    """Run one loop and stream what the requests say.

    Unless told otherwise, 16 requests run at once, with room for all of them, in chunks of 128.
    """
    with workload.ranks() as is_first:
        return run_here(workload, scheduler, report, loop) if is_first else 0


def run_here(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    report: ReportOptions,
    loop: list[str] | None,
) -> int:
    """The same, in the process that does it."""
    if loop and len(loop) > 1:
        raise ValueError(f"--loop was given {len(loop)} times, but run takes exactly one loop.")
    chosen = choose_loops(loop or [], workload.device, scheduler.serial_only)
    name, *more = workload.split(chosen)
    if more:
        raise ValueError(f"--loop all is {1 + len(more)} loops, but run takes exactly one.")
    device = open_device(workload.device)
    model = workload.open_model()
    requests = workload.make_requests(model)
    config, cost = scheduler.config_for(requests, model.context_len), workload.cost()
    console = Console(stderr=report.json, highlight=False, emoji=False)
    transcript = Transcript(model, requests)
    with streaming(console, transcript), report.logging():
        run = run_loop(name, device, model, requests, config, cost, on_output=transcript.hear)
    if report.json:
        result = {"loop": name, "dtype": run.trace.dtype, "outputs": run.outputs,
                  "errors": run.errors, "requests": metrics_json(run.metrics)}  # fmt: skip
        if workload.sampling.return_logprob:
            result["logprobs"] = logprobs_json(run.requests)
        print_json(result | drafts_as_json(run))
    say_metrics(console, run.metrics)
    if workload.sampling.return_logprob and not report.json:
        say(console, "Log-probabilities are in what --json prints.")
    if drafts := count_drafts(run.trace):
        say(console, f"{run.loop}: {drafts}.")
    took = measure(run.trace, sum(map(len, run.outputs.values())))
    computed = f" in {run.trace.dtype}" * bool(run.trace.dtype)
    say(
        console,
        f"{took.tokens} tokens in {took.steps} steps of the loop {run.loop}{computed}, "
        f"{milliseconds(took.makespan_ns)}; "
        f"the device was busy {took.device_busy_percent:.0f} % of the time.",
    )
    print_errors(run.errors)
    if run.interrupted:
        print("interrupted; every request was ended and its memory given back", file=sys.stderr)
        return INTERRUPTED
    return BAD_INPUT if run.errors else 0


# -- Shows what requests say while they say it: text, or token ids where there is no tokenizer -----


class Transcript:
    """What each request has said so far."""

    def __init__(self, model: Model, requests: Sequence[Request]) -> None:
        self.tokenizer = model.tokenizer
        self.said = {request.rid: "" for request in requests}
        self.ended = {request.rid: "" for request in requests}
        self.decoders: dict[str, StreamDecoder] = {}

    def hear(self, output: Output) -> None:
        """Note an output."""
        self.said[output.rid] += self._text(output)
        if output.finish_reason:
            self.ended[output.rid] = output.finish_reason.value

    def _text(self, output: Output) -> str:
        if self.tokenizer is None:
            return "" if output.token is None else f"{output.token} "
        decoder = self.decoders.setdefault(output.rid, StreamDecoder(self.tokenizer))
        text = decoder.push(output.token) if output.token is not None else ""
        return text + (decoder.finish() if output.finish_reason else "")

    def __rich__(self) -> Table:
        """One line for each request."""
        table = Table.grid(padding=(0, 2))
        for rid, text in self.said.items():
            table.add_row(Text(rid, "bold"), Text(text), Text(self.ended[rid], "dim"))
        return table


@contextmanager
def streaming(console: Console, transcript: Transcript) -> Iterator[None]:
    """Keep the transcript on show; where nobody watches, print it once, at the end, unwrapped."""
    if console.is_terminal:
        with Live(transcript, console=console, refresh_per_second=12):
            yield
        return
    yield
    for rid, text in transcript.said.items():
        say(console, f"{rid}: {text} ({transcript.ended[rid]})")
