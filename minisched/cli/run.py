"""``minisched run``: one loop, its tokens streamed as text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..checks.answers import count_drafts
from ..checks.overlap import measure
from ..comparison import rounded_ms
from ..core import Output, Request
from ..core.text import printable
from ..devices.registry import open_device
from ..engine.metrics import Metrics
from ..features.logprobs import logprobs_of
from ..loops.run import Run, RunStopped, run_loop, traced_stop
from ..models.base import Model
from ..models.tokenizer import StreamDecoder
from .exit import BAD_INPUT, INTERRUPTED, complain
from .layout import JSON, print_json, say, say_table
from .options import (
    LOG,
    SchedulerOptions,
    WorkloadOptions,
    choose_loops,
    log_if,
    setting,
)

STOPPED = 1  # exit code


def run(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    json: bool = JSON,
    log: bool = LOG,
    loop: list[str] = setting(list, "The loop, or FILE.py:NAME; overlap, or mlx_async on mlx."),
) -> int:
    """Run one loop and stream the text of the requests.

    By default, 16 requests run at the same time, with room for all of them, in
    chunks of 128.
    """
    if len(loop) > 1:
        raise ValueError(f"--loop was given {len(loop)} times, but run takes exactly one loop.")
    chosen = choose_loops(loop, workload.device, scheduler.serial_only)
    name, *more = chosen
    if more:
        raise ValueError(f"--loop all is {1 + len(more)} loops, but run takes exactly one.")
    device, model = open_device(workload.device), workload.open_model()
    requests = workload.make_requests(model)
    config, cost = scheduler.config_for(requests, model.context_len), workload.cost()
    transcript = Transcript(model, requests)
    try:
        with transcript.shown(not json), log_if(log), traced_stop(name, device, model):
            run = run_loop(name, device, model, requests, config, cost, on_output=transcript.hear)
    except RunStopped as stopped:
        return complain(f"{stopped}.", STOPPED)
    metrics, wants_logprobs = metrics_json(run.metrics), workload.sampling.return_logprob
    if json:
        result = {"loop": name, "dtype": run.trace.dtype, "outputs": run.outputs,
                  "errors": run.errors, "requests": metrics}  # fmt: skip
        if wants_logprobs:
            result["logprobs"] = logprobs_json(run.requests)
        print_json(result | drafts_as_json(run))
    else:
        rows = [
            (rid, *("-" if found[name] is None
                    else f"{found[name]:.1f}" if name.endswith("ms") else str(found[name])
                    for name in METRICS))
            for rid, found in metrics.items()
        ]  # fmt: skip
        say_table(("request", *(f">{name.replace('_', ' ')}" for name in METRICS)), rows)
        if wants_logprobs:
            say("Log-probabilities are in what --json prints.")
        if drafts := count_drafts(run.trace):
            say(f"{run.loop}: {drafts}.")
        took = measure(run.trace, sum(map(len, run.outputs.values())))
        computed = f" in {run.trace.dtype}" * bool(run.trace.dtype)
        say(
            f"{took.tokens} tokens in {took.steps} steps of the loop {run.loop}{computed}, "
            f"{rounded_ms(took.makespan_ns)}; "
            f"the device was busy {took.device_busy_percent:.0f} % of the time."
        )
    print_errors(run.errors)
    if run.interrupted:
        print("interrupted; every request was ended and its memory given back", file=sys.stderr)
        return INTERRUPTED
    return BAD_INPUT if run.errors else 0


class Transcript:
    """The output of each request so far: text, or token ids without a tokenizer."""

    def __init__(self, model: Model, requests: Sequence[Request]) -> None:
        self.said = {request.rid: "" for request in requests}
        self.ended = {request.rid: "" for request in requests}
        self.decoders = (
            {request.rid: StreamDecoder(model.tokenizer) for request in requests}
            if model.tokenizer
            else None
        )

    def hear(self, output: Output) -> None:
        """Store an output."""
        rid, token = output.rid, output.token
        if self.decoders is None:
            self.said[rid] += "" if token is None else f"{token} "
        elif token is not None:
            self.said[rid] += self.decoders[rid].push(token)
        if output.finish_reason:
            self.said[rid] += self.decoders[rid].finish() if self.decoders else ""
            self.ended[rid] = output.finish_reason.value

    def __rich__(self) -> Table:
        """Return one line for each request."""
        table = Table.grid(padding=(0, 2))
        for rid, text in self.said.items():
            name, words = Text(printable(rid), "bold"), Text(printable(text))
            table.add_row(name, words, Text(self.ended[rid], "dim"))
        return table

    @contextmanager
    def shown(self, is_wanted: bool) -> Iterator[None]:
        """Show it live; without a terminal, print it once, at the end, unwrapped."""
        console = Console()
        if is_wanted and console.is_terminal:
            with Live(self, console=console, refresh_per_second=12):
                yield
            return
        yield
        for rid, text in self.said.items() if is_wanted else ():
            say(f"{rid}: {text} ({self.ended[rid]})")


# -- Reports on requests, of one run or of several: as JSON, and on stderr -------------------------

METRICS = ("prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "ttft_ms", "itl_ms")


def metrics_json(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Return each request's figures at its client, by id, in the order of arrival.

    Times are in milliseconds, and ``itl_ms`` is the mean. A figure that does not exist is None.
    """
    ended = sorted(metrics.ended, key=lambda it: (it.arrival, len(it.rid), it.rid))
    return {
        it.rid: {
            "prompt_tokens": it.prompt_tokens,
            "cached_tokens": it.cached_tokens,
            "output_tokens": it.output_tokens,
            "queue_ms": None if it.queue_ns is None else it.queue_ns / 1e6,
            "ttft_ms": None if it.ttft_ns is None else it.ttft_ns / 1e6,
            "itl_ms": sum(it.itls) / len(it.itls) / 1e6 if it.itls else None,
            "retractions": it.retractions,
        }
        for it in ended
    }


def logprobs_json(requests: Iterable[Request]) -> dict[str, dict[str, Any]]:
    """Return pairs of log-probability and token, by id (SGLang ``meta_info``).

    Only requests that asked for them are listed. One list is of the tokens themselves, and one of
    the most likely ones at each place.
    """
    found = {}
    for req in requests:
        if req.params.return_logprob:
            said = dict(zip(("input", "output"), logprobs_of(req), strict=True))
            found[req.rid] = {
                f"{kind}_token_logprobs": [[item.logprob, item.token_id] for item in logprobs]
                for kind, logprobs in said.items()
            } | {
                f"{kind}_top_logprobs": [list(map(list, item.top_logprobs)) for item in logprobs]
                for kind, logprobs in said.items()
            }
    return found


def drafts_as_json(run: Run) -> dict[str, dict[str, int]]:
    """Return the numbers of proposed and accepted drafts, if there were any."""
    drafts = count_drafts(run.trace)
    if drafts is None:
        return {}
    return {"drafts": {"proposed": drafts.proposed, "accepted": drafts.accepted}}


def print_errors(errors: Mapping[str, str]) -> None:
    """Print the requests that failed, with their errors, on stderr."""
    for rid, error in errors.items():
        print(printable(f"request {rid}: {error}"), file=sys.stderr)
