"""The commands that take virtual time only: ``replay`` and ``scenario``, with their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..devices.profiles import DEFAULT_PROFILE, PROFILES
from ..replay import SCENARIOS
from .exit import exit_with
from .options import ReportOptions, SchedulerOptions, with_option_groups

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
    out: Annotated[Path | None, typer.Option(help="A file for what --json prints.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="A file for the run's trace, written as it goes on.")
    ] = None,
) -> None:
    """Replay recorded requests on sim: TTFT and ITL percentiles, cache hits, retractions.

    Unless told otherwise, a page has 512 tokens for Mooncake and 16 for CSV, a chunk 8192, 256
    requests run at once, and the KV pool is the profile's, or larger where one request needs it.
    """
    from .replay import run_replay

    exit_with(lambda: run_replay(file, scheduler, report, loop, profile, requests, out, trace))


def scenario(
    name: Annotated[str, typer.Argument(help=f"Which case: {', '.join(SCENARIOS)}.")],
    loop: LoopName = None,
    profile: ProfileName = DEFAULT_PROFILE,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Replay a published case on sim beside its claims, and say which of them hold."""
    from .replay import run_scenario

    exit_with(lambda: run_scenario(name, loop or "overlap", profile, json))
