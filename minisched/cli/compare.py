"""``minisched compare``: serial against other loops, verdict and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..checks.answers import count_drafts
from ..comparison import COLUMNS, Comparison, cells, compare_loops, sentences, verdict
from ..core import Request, TokenLogprob
from ..devices.registry import open_device
from ..engine.metrics import Metrics, RequestMetrics
from ..export.chrome import to_chrome
from ..export.html import to_html
from ..export.native import to_json
from ..export.pd_or_mixed import Row, find_runs, rows
from ..export.puml_sequence import to_sequence
from ..export.puml_timing import to_timing
from ..export.svg import to_svg
from ..loops.design import find_loop, wanted_features
from ..loops.run import Run, RunStopped
from ..models.base import Model
from ..scheduler import SchedulerConfig
from ..trace import Trace
from ..trace.files import write_whole
from . import presets as advice
from .exit import complain, exit_with
from .layout import Fitted, say, token_progress
from .options import (
    ReportOptions,
    SchedulerOptions,
    WorkloadOptions,
    choose_loops,
    make_config,
    with_option_groups,
)

# -- What each request's client would have measured: queue time, TTFT, ITL, cached tokens ----------

METRICS = ("prompt_tokens", "cached_tokens", "output_tokens", "queue_ms", "ttft_ms", "itl_ms")


def figures(request: RequestMetrics) -> dict[str, Any]:
    """One request's figures; times in milliseconds, ``itl_ms`` the mean, None for what was not."""
    itls = request.itls
    return {
        "prompt_tokens": request.prompt_tokens,
        "cached_tokens": request.cached_tokens,
        "output_tokens": request.output_tokens,
        "queue_ms": in_ms(request.queue_ns),
        "ttft_ms": in_ms(request.ttft_ns),
        "itl_ms": in_ms(sum(itls) / len(itls)) if itls else None,
        "retractions": request.retractions,
    }


def metrics_json(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Every request's figures, by id."""
    return {request.rid: figures(request) for request in in_order(metrics)}


def table(metrics: Metrics) -> Table:
    """The same to read."""
    result = Table(box=SIMPLE_HEAD, pad_edge=False)
    result.add_column("request")
    for column in METRICS:
        result.add_column(column.replace("_", " "), justify="right")
    for request in in_order(metrics):
        found = figures(request)
        result.add_row(request.rid, *(as_text(found[column]) for column in METRICS))
    return result


def in_order(metrics: Metrics) -> list[RequestMetrics]:
    """Those that ended, by arrival."""
    return sorted(
        metrics.ended, key=lambda request: (request.arrival, len(request.rid), request.rid)
    )


def in_ms(nanoseconds: float | None) -> float | None:
    """Milliseconds."""
    return None if nanoseconds is None else nanoseconds / 1e6


def as_text(value: float | None) -> str:
    """A cell: a count, a time, or a dash."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.1f}"


# -- What ``run`` and ``compare`` say of log-probabilities: as SGLang's JSON, and in a few lines


def logprobs_json(requests: Iterable[Request]) -> dict[str, dict[str, Any]]:
    """By id of who wanted some: pairs of log-probability and token (SGLang ``meta_info``)."""
    return {
        req.rid: {
            **lists("input", req.input_token_logprobs),
            **lists("output", req.output_token_logprobs),
        }
        for req in requests
        if req.params.return_logprob
    }


def lists(kind: str, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """One list of the tokens themselves, and one of the most likely ones at each place."""
    return {
        f"{kind}_token_logprobs": [[item.logprob, item.token_id] for item in logprobs],
        f"{kind}_top_logprobs": [list(map(list, item.top_logprobs)) for item in logprobs],
    }


def print_logprobs(console: Console, model: Model, requests: Iterable[Request]) -> None:
    """Two lines for each request that wanted some: its prompt, and what it said."""
    for req in requests:
        for kind, found in (
            ("prompt", req.input_token_logprobs),
            ("output", req.output_token_logprobs),
        ):
            if found:
                console.print(line(f"{req.rid} {kind}:", found, model), soft_wrap=True)


def line(title: str, found: Sequence[TokenLogprob], model: Model) -> Text:
    """``'The' - ' capital' -5.12 (' first' -3.40)``: behind a token its log-probability, and what
    would have been likeliest, if that is another one.
    """
    text = Text(title, "bold")
    for logprob, token, top in found:
        text.append(f" {spelled(token, model)} ", "not bold")
        text.append("-" if logprob is None else f"{logprob:.2f}", "dim not bold")
        if top and top[0][1] != token:
            best, other = top[0]
            text.append(f" ({spelled(other, model)} {best:.2f})", "dim not bold")
    return text


def spelled(token: int, model: Model) -> str:
    """A token as text, or as its id where it has none."""
    text = model.tokenizer.decode([token]) if model.tokenizer else ""
    return repr(text) if text else str(token)


# -- What ``compare`` says: a table, the verdict, and why it is faster -----------------------------


def print_report(console: Console, comparison: Comparison) -> None:
    """The table, the verdict and the reason."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for column in COLUMNS:
        is_name = column == "loop"  # which may be long: it is folded before a figure is cut
        table.add_column(
            column, justify="left" if is_name else "right", no_wrap=not is_name, overflow="fold"
        )
    for report in comparison.reports:
        table.add_row(*cells(comparison, report))
    console.print(Fitted(table))
    bold = verdict(comparison)
    for line in sentences(comparison):
        console.print(f"[bold]{line}[/bold]" if line == bold else line, highlight=False)
    if pair := find_runs(comparison.runs):
        print_pd_or_mixed(console, rows(*pair))


def print_pd_or_mixed(console: Console, compared: Sequence[Row]) -> None:
    """The guides' comparison of PD separation and mixed chunks."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for column in ("", "PD separation", "mixed chunks"):
        table.add_column(column)
    for row in compared:
        table.add_row(*row)
    console.print(Fitted(table))


def print_errors(errors: Mapping[str, str]) -> None:
    """Say on stderr which requests ended badly, and why."""
    for rid, error in errors.items():
        print(f"request {rid}: {error}", file=sys.stderr)


# -- Writes a comparison's pictures and traces into a folder ---------------------------------------


def write_pictures(comparison: Comparison, out: Path) -> list[Path]:
    """The page, the picture, and for each loop its diagrams and its trace, in two forms.

    ``LOOP.trace.json`` is for Perfetto, ``LOOP.json`` for ``minisched view``.

    Raises:
        ValueError: a file can't be written.
    """
    traces = [run.trace for run in comparison.runs]
    files = {"compare.html": to_html(traces, comparison.reports), "compare.svg": to_svg(traces)}
    for report, trace in zip(comparison.reports, traces, strict=True):
        name = stem(trace)
        if report.steps:  # nothing to draw where every request was refused
            files[f"{name}_timing.puml"] = to_timing(trace)
            files[f"{name}_sequence.puml"] = to_sequence(trace)
        files[f"{name}.trace.json"] = to_chrome(trace)
        files[f"{name}.json"] = to_json(trace)
    return write(files, out)


def write_traces(traces: Sequence[Trace], out: Path) -> list[Path]:
    """The traces alone, as of runs of which the last one stopped with an error.

    Raises:
        ValueError: a file can't be written.
    """
    return write({f"{stem(trace)}.json": to_json(trace) for trace in traces}, out)


def stem(trace: Trace) -> str:
    """What a run's files are called: not every system takes a colon in a file's name."""
    return trace.loop.replace(":", "-")


def write(files: Mapping[str, str], out: Path) -> list[Path]:
    """Texts by the name of their file.

    Raises:
        ValueError: a file can't be written.
    """
    for name, text in files.items():
        write_whole(out / name, text)
    return [out / name for name in files]


# -- What ``compare --json`` prints ----------------------------------------------------------------

JSON_FIELDS = (
    "loop", "steps", "tokens", "makespan_ns", "device_busy_ns", "host_busy_ns", "host_hidden_ns",
    "bubble_ns", "wasted_rows",
)  # fmt: skip


def comparison_json(comparison: Comparison, files: list[str], with_outputs: bool) -> dict[str, Any]:
    """The object; times are integer nanoseconds."""
    trace, lost = comparison.runs[0].trace, comparison.lost_ns
    result: dict[str, Any] = {
        "identical": comparison.identical,
        "device": trace.device,
        "model": trace.model,
        "dtype": trace.dtype,
        "clock": trace.clock,
        "runs": [
            {name: getattr(report, name) for name in JSON_FIELDS}
            | {"lost_ns": lost[report.loop]}
            | drafts_as_json(run)
            for run, report in zip(comparison.runs, comparison.reports, strict=True)
        ],
        "speedup": comparison.speedup,
        "ideal": comparison.ideal,
        "files": files,
        "differences": [vars(item) for item in comparison.differences],
        "errors": comparison.errors,
    }
    if pair := find_runs(comparison.runs):
        result["pd_or_mixed"] = [list(row) for row in rows(*pair)]
    if comparison.logprob_difference is not None:
        result["logprob_difference"] = comparison.logprob_difference
    if with_outputs:
        result["outputs"] = comparison.runs[0].outputs
        if comparison.logprob_difference is not None:
            result["logprobs"] = logprobs_json(comparison.runs[0].requests)
    return result


def drafts_as_json(run: Run) -> dict[str, dict[str, int]]:
    """How many drafts were proposed and accepted, if there were any."""
    drafts = count_drafts(run.trace)
    if drafts is None:
        return {}
    return {"drafts": {"proposed": drafts.proposed, "accepted": drafts.accepted}}


DIFFERENT, BAD_INPUT = 1, 2  # exit codes


@with_option_groups
def compare(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    report: ReportOptions,
    loops: Annotated[
        str | None, typer.Option(help="Loops, separated by commas; serial always runs too.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for pictures and traces.")] = Path("out"),
    tokens: Annotated[bool, typer.Option("--tokens", help="Add all tokens to --json.")] = False,
) -> None:
    """Run a workload serially and overlapped: verdict, reason and pictures.

    Unless told otherwise, 16 requests run at once, with room for all of them, in chunks of 128.

    What most people need:

    \b
    minisched compare --loops all             every published design
    minisched compare --loops vllm_async      another one beside serial
    minisched compare --requests 4            fewer requests
    minisched compare --host-work 20          a slower host: 20 ms more a step
    minisched compare --device thread --model smollm2
    """

    if tokens and not report.json:
        raise ValueError("--tokens adds to --json, so it needs --json.")
    exit_with(lambda: run_compare(workload, scheduler, report, loops, out, tokens))


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
    names = choose_loops(asked, workload.device, scheduler.serial_only)
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
