"""The commands of the museum: ``museum list`` and ``museum run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .exit import exit_with

museum = typer.Typer(help="Published bugs, each put back, caught by a law, drawn, and cured.")
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@museum.callback(invoke_without_command=True)
def choose(context: typer.Context) -> None:
    """Published bugs, each put back, caught by a law, drawn, and cured."""
    if context.invoked_subcommand is None:
        raise ValueError(
            "museum lists or runs bugs: `museum list`, `museum run NAME`, or `museum run --all`."
        )


@museum.command("list", epilog="Example: minisched museum list")
def list_bugs(json: Json = False) -> None:
    """List the bugs by chapter, and the suspicions that were refuted; with --json it tries all."""
    from .museum import run_list

    exit_with(lambda: run_list(json))


@museum.command("run", epilog="Example: minisched museum run pinned_buffer_rewritten")
def run_bugs(
    name: Annotated[str | None, typer.Argument(help="Which; `museum list` names them.")] = None,
    all_of_them: Annotated[bool, typer.Option("--all", help="Try every one.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Draw it into a file, .svg or .html, as well.")
    ] = None,
    json: Json = False,
) -> None:
    """Put a bug back: its smallest case with the offence marked, and the fix.

    Exits with 1 if a bug is not caught or the healthy code does not pass.
    """
    from .museum import run_all, run_one

    if bool(name) == all_of_them:
        raise ValueError("museum run takes the name of one exhibit, or --all.")
    if out and not name:
        raise ValueError("--out draws one exhibit, so it needs its name.")
    exit_with(lambda: run_one(name, out, json) if name else run_all(json))
