"""The commands and their options; each hands over to a module of its own."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from shutil import get_terminal_size
from typing import Annotated, Any

import typer

from .bench_command import bench
from .calibrate_command import calibrate
from .check_command import check
from .exit import complain, complain_of, exit_with, guarded_output
from .fidelity_command import fidelity
from .look_commands import stepper, view
from .museum_commands import museum
from .options import ReportOptions, SchedulerOptions, WorkloadOptions, with_option_groups
from .replay_commands import replay, scenario

LEAST_PANELS = 80  # columns; panels of --help in narrower ones cut the names of options
USAGE_ERROR: Any = typer.BadParameter.__base__  # click's class, wherever typer keeps its click

app = typer.Typer(
    help="Overlap scheduling for LLM inference, small enough to read, with pictures.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
EXAMPLES = {  # shown below each command's help; a test runs them
    "bench": "minisched bench hidden --model hash",
    "calibrate": "minisched calibrate --device thread --model hash",
    "check": "minisched check out/serial.json out/overlap.json",
    "compare": "minisched compare --loops overlap,vllm_async --requests 4",
    "diagrams": "minisched diagrams --check overlap",
    "doctor": "minisched doctor",
    "first-run": "minisched first-run --out out/first-run",
    "fetch": "minisched fetch smollm2",
    "fidelity": "minisched fidelity sglang --cases 100",
    "presets": "minisched presets",
    "replay": "minisched replay requests.csv --requests 1000",
    "run": "minisched run --loop overlap --prompt 'Hello there' --max-new-tokens 8",
    "scenario": "minisched scenario long-document",
    "stepper": "minisched stepper out/serial.json out/overlap.json",
    "view": "minisched view decode out/overlap.json --form text",
}


def example(name: str) -> str:
    """The last line of a command's help."""
    return f"Example: {EXAMPLES[name]}"


def show_version(is_asked: bool) -> None:
    """Print the version, and nothing else."""
    if is_asked:
        print(f"minisched {metadata.version('minisched')}")
        raise typer.Exit


@app.callback()
def of_every_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=show_version, is_eager=True),
    ] = False,
) -> None:
    """Overlap scheduling for LLM inference, small enough to read, with pictures."""


@app.command(epilog=example("compare"))
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


@app.command(epilog=example("run"))
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


@app.command(epilog=example("diagrams"))
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


for command in (bench, calibrate, check, fidelity, view, stepper, replay, scenario):
    app.command(epilog=example(command.__name__))(command)
app.add_typer(museum, name="museum")


@app.command(epilog=example("presets"))
def presets(
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """List the classes of GPUs that --preset knows, with their sizes and what they are told."""
    from .presets import run_presets

    run_presets(json)


@app.command(epilog=example("fetch"))
def fetch(name: Annotated[str, typer.Argument(help="The model; smollm2 is the one.")]) -> None:
    """Bring a small language model's weights here, once."""
    from .fetch import run_fetch

    run_fetch(name)


@app.command(epilog=example("doctor"))
def doctor(
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say which devices, models and renderers work here, and what the others need."""
    from .doctor import run_doctor

    run_doctor(json)


@app.command(epilog=example("first-run"))
def first_run(
    seconds: Annotated[
        float, typer.Option(help="For what could go on for ever: the laws, and the clock.")
    ] = 60.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this step: machine, hash, memory, waiting, graphs, clock, trace or figures; "
            "repeatable."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="A folder for the report and traces of failures.")] = (
        Path("out/first-run")
    ),
    here: Annotated[
        bool, typer.Option("--here", help="In this process, where a debugger sees it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """On a GPU that was never used with this: check in order what has to hold there, and measure.

    Under ten minutes. A step that can't be judged says why. Exit code 1 if one failed.
    """
    from .first_run import run_first_run

    exit_with(lambda: run_first_run(out, seconds, only or [], here, json))


def main() -> None:
    """The console script: a bad option is one sentence and exit code 2, never a traceback."""
    with guarded_output():
        code = run_command()
    sys.exit(code)


def run_command() -> int:
    """Run the command line; click would turn Ctrl-C into a silent exit, so it is caught inside."""
    columns = get_terminal_size().columns
    app.rich_markup_mode = None if columns < LEAST_PANELS else "rich"
    command = typer.main.get_command(app)
    try:
        said = command.main(None, "minisched", standalone_mode=False, terminal_width=columns)
        return said or 0
    except USAGE_ERROR as error:
        said = in_one_sentence(error)
        return complain(said, 2) if said else 2  # nothing was asked for: the help was said
    except ValueError as error:
        return complain(str(error), 2)
    except OSError as error:
        return complain_of(error)


def in_one_sentence(error: Any) -> str:
    """What is wrong with a command line; of an argument that is missing also what it could be."""
    said = str(error.format_message())
    if said.startswith("Missing argument") and (help := getattr(error.param, "help", "")):
        return f"{said.rstrip('.')}: {help}"
    return said
