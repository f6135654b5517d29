"""The commands and their options; each hands over to a module of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ..core import SamplingParams
from . import options as opt

BROKEN_PIPE = 141  # what a shell reports for a command that SIGPIPE ended
USAGE_ERROR: Any = typer.BadParameter.__base__  # click's class, wherever typer keeps its click

app = typer.Typer(
    help="Overlap scheduling for LLM inference, small enough to read, with pictures.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command()
def compare(
    loops: Annotated[str | None, typer.Option(help="Loops, separated by commas.")] = None,
    device: opt.DeviceName = "sim",
    model: opt.ModelName = "hash",
    requests: opt.Requests = None,
    prompt: opt.Prompts = None,
    prompts: opt.PromptFile = None,
    max_new_tokens: opt.MaxNewTokens = 64,
    chunk: opt.Chunk = 128,
    pool: opt.Pool = None,
    page_size: opt.PageSize = 1,
    max_running: opt.MaxRunning = 16,
    temperature: opt.Temperature = 0.0,
    top_p: opt.TopP = 1.0,
    top_k: opt.TopK = -1,
    seed: opt.Seed = 0,
    host_work: opt.HostWork = 0.0,
    out: Annotated[Path, typer.Option(help="Folder for pictures and traces.")] = Path("out"),
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="Add all tokens to --json.")] = False,
) -> None:
    """Run a workload serially and overlapped: verdict, reason and pictures."""
    from .compare import run_compare

    sampling = SamplingParams(temperature, top_k, top_p, seed, max_new_tokens)
    options = opt.Options(
        device, model, requests, prompt or [], prompts, chunk, pool, page_size, max_running,
        host_work, sampling,
    )  # fmt: skip
    if tokens and not json:
        raise ValueError("--tokens adds to --json, so it needs --json.")
    raise typer.Exit(interruptible(lambda: run_compare(options, loops, out, json, tokens)))


@app.command()
def run(
    loop: Annotated[
        list[str] | None, typer.Option(help="The loop; overlap, or mlx_async on mlx.")
    ] = None,
    device: opt.DeviceName = "sim",
    model: opt.ModelName = "hash",
    requests: opt.Requests = None,
    prompt: opt.Prompts = None,
    prompts: opt.PromptFile = None,
    max_new_tokens: opt.MaxNewTokens = 64,
    chunk: opt.Chunk = 128,
    pool: opt.Pool = None,
    page_size: opt.PageSize = 1,
    max_running: opt.MaxRunning = 16,
    temperature: opt.Temperature = 0.0,
    top_p: opt.TopP = 1.0,
    top_k: opt.TopK = -1,
    seed: opt.Seed = 0,
    host_work: opt.HostWork = 0.0,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Run one loop and stream what the requests say."""
    from .run import run_run

    sampling = SamplingParams(temperature, top_k, top_p, seed, max_new_tokens)
    options = opt.Options(
        device, model, requests, prompt or [], prompts, chunk, pool, page_size, max_running,
        host_work, sampling,
    )  # fmt: skip
    raise typer.Exit(interruptible(lambda: run_run(options, only_one(loop, device), json)))


@app.command()
def bench(
    part: Annotated[str, typer.Argument(help="hidden or generation.")],
    device: opt.DeviceName = "thread",
    model: opt.ModelName = "smollm2",
    requests: opt.Requests = 4,
    max_new_tokens: opt.MaxNewTokens = 32,
    repeat: Annotated[int, typer.Option(help="Interleaved repetitions.")] = 5,
    json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Measure side by side: host work hidden, or tokens a second against other libraries."""
    from .bench import run_bench

    sampling = SamplingParams(max_new_tokens=max_new_tokens)
    options = opt.Options(device, model, requests, sampling=sampling)
    raise typer.Exit(interruptible(lambda: run_bench(part, options, repeat, json)))


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


def interruptible(command: Callable[[], int]) -> int:
    """Its exit code, or 130 after Ctrl-C; by then the run that was on has ended cleanly."""
    try:
        return command()
    except KeyboardInterrupt:
        return complain("interrupted.", 130)


def only_one(loops: list[str] | None, device: str) -> str:
    """The one loop that ``run`` takes.

    Raises:
        ValueError: there are more.
    """
    if loops and len(loops) > 1:
        raise ValueError(f"--loop was given {len(loops)} times, but run takes exactly one loop.")
    return loops[0] if loops else opt.overlapped_loop(device)


def complain(sentence: str, code: int) -> int:
    """Say what is wrong on stderr."""
    print(f"minisched: {sentence}", file=sys.stderr)
    return code
