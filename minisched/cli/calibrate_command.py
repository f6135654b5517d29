"""The command ``calibrate`` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..models.llama import AUTO
from .exit import exit_with
from .options import DTYPE_HELP


def calibrate(
    device: Annotated[str, typer.Option(help="thread, cuda or mlx.")] = "thread",
    model: Annotated[
        str, typer.Option(help="hash, smollm2, a directory, or a Hugging Face id.")
    ] = "smollm2",
    dtype: Annotated[str, typer.Option(help=DTYPE_HELP)] = AUTO,
    loops: Annotated[
        str | None, typer.Option(help="Loops, separated by commas; all that run on the device.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The profile's file; DEVICE-MODEL.json here.")
    ] = None,
    repeat: Annotated[int, typer.Option(help="Interleaved repetitions.")] = 3,
) -> None:
    """Measure what steps cost on this machine, for compare, run and replay --profile FILE.

    Runs a few designed workloads through every loop, and fits costs to their traces.
    """
    from .calibrate import run_calibrate

    exit_with(lambda: run_calibrate(device, model, dtype, loops, out, repeat))
