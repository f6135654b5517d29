"""The commands and their options; each hands over to a module of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from .bench_command import bench
from .calibrate_command import calibrate
from .check_command import check
from .exit import complain, exit_with
from .look_commands import stepper, view, watch
from .museum_commands import museum
from .option_groups import with_option_groups
from .options import ReportOptions, WorkloadOptions
from .replay_commands import replay, scenario
from .scheduler_options import SchedulerOptions

BROKEN_PIPE = 141  # what a shell reports for a command that SIGPIPE ended
USAGE_ERROR: Any = typer.BadParameter.__base__  # click's class, wherever typer keeps its click

app = typer.Typer(
    help="Overlap scheduling for LLM inference, small enough to read, with pictures.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
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
    """
    from .compare import run_compare

    if tokens and not report.json:
        raise ValueError("--tokens adds to --json, so it needs --json.")
    exit_with(lambda: run_compare(workload, scheduler, report, loops, out, tokens))


@app.command()
@with_option_groups
def run(
    workload: WorkloadOptions,
    scheduler: SchedulerOptions,
    report: ReportOptions,
    loop: Annotated[
        list[str] | None, typer.Option(help="The loop; overlap, or mlx_async on mlx.")
    ] = None,
) -> None:
    """Run one loop and stream what the requests say.

    Unless told otherwise, 16 requests run at once, with room for all of them, in chunks of 128.
    """
    from .run import run_run

    if loop and len(loop) > 1:
        raise ValueError(f"--loop was given {len(loop)} times, but run takes exactly one loop.")
    exit_with(lambda: run_run(workload, scheduler, report, loop or []))


@app.command()
def diagrams(
    names: Annotated[
        list[str] | None, typer.Argument(help="Topics or diagrams; all unless named.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if something is stale.")
    ] = False,
    svg: Annotated[
        bool, typer.Option(help="Render the SVGs too (with --check: where the driver is).")
    ] = True,
    server: Annotated[
        str, typer.Option(help="A PlantUML server, such as http://127.0.0.1:8080/plantuml.")
    ] = "",
) -> None:
    """Regenerate golden traces, their views and the diagrams of this repository, from runs.

    What is measured on a machine (mlx_memory) is drawn only when it is named, and never checked.

    A renderer that is named wins: --server, PLANTUML_SERVER or PLANTUML_JAR, in this order.

    Else it is the pinned one, in Node, else a plantuml command. --check is about the pinned one.
    """
    from .diagrams import run_diagrams

    exit_with(lambda: run_diagrams(names or [], check, svg, server=server))


app.command()(bench)
app.command()(calibrate)
app.command()(check)
app.command()(view)
app.command()(watch)
app.command()(stepper)
app.command()(replay)
app.command()(scenario)
app.add_typer(museum, name="museum")


@app.command()
def presets(
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the classes of GPUs that --preset knows, with their sizes and what they are told."""
    from .presets import run_presets

    run_presets(json)


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="The model; smollm2 is the one.")]) -> None:
    """Bring a small language model's weights here, once."""
    from .fetch import run_fetch

    run_fetch(name)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say which devices, models and renderers work here, and what the others need."""
    from .doctor import run_doctor

    run_doctor(json)


def main() -> None:
    """The console script: a bad option is one sentence and exit code 2, never a traceback."""
    try:
        code = run_command()
    except USAGE_ERROR as error:
        code = complain(error.format_message(), 2)
    except ValueError as error:
        code = complain(str(error), 2)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = BROKEN_PIPE
    sys.exit(code)


def run_command() -> int:
    """Run the command line; click would turn Ctrl-C into a silent exit, so it is caught inside."""
    command = typer.main.get_command(app)
    return command.main(standalone_mode=False) or 0
