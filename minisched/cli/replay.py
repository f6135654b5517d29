"""``minisched replay``: a recorded workload in virtual time, as its clients experience it."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from ..checks.history import many
from ..core import Output
from ..core.text import printable
from ..replay.profiles import DEFAULT_PROFILE, find_profile
from ..replay.replay import LengthModel, as_json, config_for, play
from ..replay.trace_file import TraceFile
from .exit import BAD_INPUT
from .layout import JSON, print_json, say, say_table, work_progress
from .options import (
    LOG,
    PROFILE_HELP,
    UNPACKED,
    SchedulerOptions,
    choose_loops,
    in_words_of_options,
    log_if,
    setting,
)

MOST_ERRORS = 5  # requests named in errors
MOST_NAMES = 8  # of fields without effect


def replay(
    scheduler: SchedulerOptions,
    json: bool = JSON,
    log: bool = LOG,
    file: Path = typer.Argument(
        help="JSONL of Mooncake, Dynamo, AIPerf, Bailian, or CSV of Azure, BurstGPT, your own; "
        "perhaps in gzip."
    ),
    loop: str | None = setting(None, "The loop, or FILE.py:NAME; overlap."),
    profile: str = setting(DEFAULT_PROFILE, "The cost of steps: " + PROFILE_HELP),
    requests: int | None = setting(None, "How many, the first; all.", least=1, most=100_000_000),
    skip_empty: bool = setting(False, "Leave out requests with an empty prompt or answer."),
    unpacked_mib: int = UNPACKED,
) -> int:
    """Replay recorded requests on sim: TTFT and ITL percentiles, cache hits, retractions.

    By default a page has as many tokens as a hash id (512 for Mooncake), and 16
    without hash ids. A chunk has 8192 tokens, and at most 256 requests run. The
    KV pool is the profile's, or larger where one request needs it.
    """
    machine = find_profile(profile)
    [name] = choose_loops([] if loop is None else [loop], "sim", scheduler.serial_only)
    source, errors = TraceFile(file, requests, skip_empty, unpacked_mib), list[str]()
    with work_progress() as work, in_words_of_options("skip_empty"):
        survey = source.survey(work.reading(file))
    with in_words_of_options():
        config = config_for(survey, machine, scheduler.over_preset)
    model = LengthModel(survey.num_ids, survey.requests, survey.longest)
    with work_progress(survey.requests) as work, log_if(log):

        def hear(output: Output) -> None:
            """Count ended requests, and keep their errors."""
            if output.finish_reason is not None:
                work.advance()
            if output.error:
                errors.append(f"request {output.rid}: {output.error}")

        run = play(name, model, source.requests(survey), config, machine.cost, hear)
    found = as_json(run, survey, machine.name)
    if json:
        print_json(found)
    else:
        rows = [
            (title, *("-" if value is None else f"{value:.1f}" for value in found[key].values()))
            for title, key in (("TTFT", "ttft_ms"), ("ITL", "itl_ms"), ("queue", "queue_ms"))
        ]
        say_table(("virtual ms", *(f">{name}" for name in found["ttft_ms"])), rows)
        say(
            f"{found['finished']} of {many(found['requests'], 'request')} "
            f"({survey.name}) finished in {found['makespan_ns'] / 1e9:.1f} s of virtual "
            f"time: {found['steps']} steps of the loop {found['loop']}, policy {found['policy']}, "
            f"{found['tokens_per_second']:.0f} tokens/s."
        )
        retracted = "No request was retracted"
        if retractions := found["retractions"]:
            retracted = f"{many(retractions, 'retraction')} took memory from running requests"
        say(
            f"{100 * found['cache_hit_rate']:.1f} % of the admitted tokens were in the prefix "
            f"cache. {retracted}. The device was busy "
            f"{100 * found['device_busy']:.1f} % of the time (profile {found['profile']}, "
            f"{found['kv_tokens']} KV slots in pages of {found['page_size']})."
        )
        if survey.num_skipped:
            say(f"{many(survey.num_skipped, 'empty request')} skipped.")
        if survey.ignored:
            names = [*survey.ignored]
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            say(f"Without effect here: {', '.join(names[:MOST_NAMES])}{more}.")
        say(
            f"The simulation took {found['host_seconds']:.1f} s of real time, "
            f"{found['requests_per_second']:.0f} requests each second."
        )
    for sentence in errors[:MOST_ERRORS]:
        print(printable(sentence), file=sys.stderr)
    if len(errors) > MOST_ERRORS:
        print(f"{len(errors) - MOST_ERRORS} requests more were refused.", file=sys.stderr)
    return BAD_INPUT if errors else 0
