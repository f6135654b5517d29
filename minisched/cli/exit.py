"""How a command ends: with its exit code, and one sentence where something is wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer


def exit_with(command: Callable[[], int]) -> None:
    """Exit with a command's code, or 130 after Ctrl-C; by then its run has ended cleanly."""
    try:
        code = command()
    except KeyboardInterrupt:
        code = complain("interrupted.", 130)
    raise typer.Exit(code)


def complain(sentence: str, code: int) -> int:
    """Say what is wrong on stderr."""
    print(f"minisched: {sentence}", file=sys.stderr)
    return code
