"""``minisched replay``: a recorded workload in virtual time, as its clients would have seen it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from ..checks.history import counted
from ..core import Output
from ..devices.profiles import DEFAULT_PROFILE, PROFILES, find_profile
from ..replay.replay import LengthModel, as_json, config_for, play
from ..replay.trace_file import TraceFile
from .exit import BAD_INPUT
from .layout import print_json, say, say_table, work_progress
from .options import (
    ReportOptions,
    SchedulerOptions,
    choose_loops,
    in_range,
    in_words_of_options,
    with_option_groups,
)

LoopName = Annotated[str | None, typer.Option("--loop", help="The loop; overlap.")]
ProfileName = Annotated[
    str,
    typer.Option(
        "--profile", help=f"What steps cost: {', '.join(PROFILES)}, or a file of calibrate."
    ),
]


@with_option_groups
def replay(
    file: Annotated[Path, typer.Argument(help="Mooncake's JSONL, or CSV; perhaps in gzip.")],
    scheduler: SchedulerOptions,
    report: ReportOptions,
    loop: LoopName = None,
    profile: ProfileName = DEFAULT_PROFILE,
    requests: Annotated[int | None, typer.Option(help="How many, the first; all.")] = None,
) -> int:
    """Replay recorded requests on sim: TTFT and ITL percentiles, cache hits, retractions.

    Unless told otherwise, a page has 512 tokens for Mooncake and 16 for CSV, a chunk 8192, 256
    requests run at once, and the KV pool is the profile's, or larger where one request needs it.
    """

    in_range("requests", requests, 1)
    machine = find_profile(profile)
    [name] = choose_loops([] if loop is None else [loop], "sim", scheduler.serial_only)
    source = TraceFile(file, requests)
    with work_progress() as work:
        survey = source.survey(work.reading(file))
    with in_words_of_options():
        config = config_for(survey, machine, scheduler.over_preset)
    model = LengthModel(survey.highest_id + 1, survey.requests, survey.longest)
    errors: list[str] = []
    with request_progress(survey.requests, errors) as on_output, report.logging():
        run = play(name, model, source.requests(), config, machine.cost, on_output)
    result: dict[str, Any] = as_json(run, survey.requests, machine.name)
    if report.json:
        print_json(result)
    else:
        console = Console(highlight=False, emoji=False)
        print_report(console, result, survey.format.name)
    for sentence in errors[:MOST_ERRORS]:
        print(sentence, file=sys.stderr)
    if len(errors) > MOST_ERRORS:
        print(f"{len(errors) - MOST_ERRORS} requests more were refused.", file=sys.stderr)
    return BAD_INPUT if errors else 0


MOST_ERRORS = 5  # requests that are named


# -- What ``replay`` says to people ----------------------------------------------------------------


def print_report(console: Console, result: dict[str, Any], format: str) -> None:
    """A table of the clients' times, and the rest in sentences; ``result`` is the JSON object."""
    rows = [
        (title, *("-" if value is None else f"{value:.1f}" for value in result[key].values()))
        for title, key in (("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("queue", "queue_ms"))
    ]
    say_table(console, ("virtual ms", *(f">{name}" for name in result["ttft_ms"])), rows)
    for sentence in sentences(result, format):
        say(console, sentence)


def sentences(result: dict[str, Any], format: str) -> Iterator[str]:
    """Everything else."""
    yield (
        f"{result['finished']} of {counted(result['requests'], 'request')} ({format}) finished in "
        f"{result['makespan_ns'] / 1e9:.1f} s of virtual time: {result['steps']} steps of the loop "
        f"{result['loop']}, policy {result['policy']}, {result['tokens_per_second']:.0f} tokens/s."
    )
    yield (
        f"The cache gave {100 * result['cache_hit_rate']:.1f} % of the tokens, requests lost their "
        f"memory {result['retractions']} times, and the device was busy "
        f"{100 * result['device_busy']:.1f} % of the time (profile {result['profile']}, "
        f"{result['kv_tokens']} KV slots in pages of {result['page_size']})."
    )
    yield (
        f"The simulation took {result['host_seconds']:.1f} s of real time, "
        f"{result['requests_per_second']:.0f} requests each second."
    )


@contextmanager
def request_progress(total: int, errors: list[str]) -> Iterator[Callable[[Output], None]]:
    """A bar on stderr, gone when done; ``errors`` gets a sentence for each refused request."""
    with work_progress(total) as work:

        def on_output(output: Output) -> None:
            """Count the ends, and keep the errors."""
            if output.finish_reason is None:
                return
            work.advance()
            if output.error:
                errors.append(f"request {output.rid}: {output.error}")

        yield on_output
