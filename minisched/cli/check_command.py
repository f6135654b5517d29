"""The command ``check``: its arguments and options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exit import exit_with


def check(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(help="Recorded runs; of several, the first one is the baseline."),
    ] = None,
    workloads: Annotated[
        int | None, typer.Option(help="Draw so many instead; 150, and 20 in real time.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of the first workload; each next one's is 1 more.")
    ] = 0,
    loop: Annotated[
        list[str] | None,
        typer.Option(help="Only on this loop, as LOOP:RELAY:OPTION=VALUE; repeatable."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="sim, thread, cuda or mlx, with the hash model.")
    ] = "sim",
    jobs: Annotated[
        int | None, typer.Option(help="Processes; one for each core, and 1 in real time.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for the first failure's trace and its picture.")
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(help="Of recorded runs: draw what was found first; .svg or .txt.")
    ] = None,
    step: Annotated[
        str, typer.Option(help="Of a profiler's trace: the ranges that are steps; * is any text.")
    ] = "",
    axes: Annotated[
        bool, typer.Option("--axes", help="Count what was drawn, and name what never was.")
    ] = False,
    faults: Annotated[
        bool, typer.Option("--faults", help="Break what can break, on every loop.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say of recorded runs whether they are identical, leak, race and overlap; or try many.

    Without a trace it draws random workloads and runs each on up to 12 of the
    loops that take it: exit code 1 if a law broke. Runs of two workloads can't
    be compared: exit code 2.

    --json has counts then: cases, identical, races, leaks; and failures, each
    with seed and loop. An aborted request is identical as far as it got, and a
    refused one if it rightly got nothing.

    With --faults something goes wrong in every run (a pass raises, logits are
    NaN, a thread dies, memory ends, a reader is gone, ..), on each loop as often
    as --workloads says, or once. It counts how often that was tried and
    survived: exit code 1 if not always.
    """
    from .check import Wanted, run_check

    wanted = Wanted(workloads, seed, tuple(loop or ()), device, jobs, out, axes)
    if faults:
        from .check import run_check_faults

        exit_with(lambda: run_check_faults(traces or [], wanted, draw, json, step))
    exit_with(lambda: run_check(traces or [], wanted, draw, json, step))
