"""``minisched calibrate``: what steps cost on this machine, as a profile for ``sim``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..bench.calibrate import check_model, check_real_time, fit_costs
from ..bench.figures import machine, versions
from ..devices.profiles import MeasuredCost, Profile, as_json
from ..models.llama import AUTO
from ..models.registry import open_model
from ..trace.files import write_whole
from .layout import say, say_command
from .options import DTYPE_HELP, choose_loops


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
) -> int:
    """Measure what steps cost on this machine, for compare, run and replay --profile FILE.

    Runs a few designed workloads through every loop, and fits costs to their traces.
    """

    if repeat < 1:
        raise ValueError(f"--repeat is {repeat}, but it must be at least 1.")
    check_real_time(device, "calibrate")
    names = choose_loops((loops or "all").split(","), device, only_serial=False)
    opened = open_model(model, device, dtype)
    check_model(opened)
    file = check_file(out or Path(f"{device}-{opened.name}.json"))
    with Console(stderr=True).status("warming up") as status:
        cost = fit_costs(device, opened, names, repeat, report=status.update)
    computing = f"{opened.name} on {device}" + f" in {opened.dtype}" * bool(opened.dtype)
    description = f"{computing}, measured with {repeat} repetitions"
    profile = Profile(file.stem, description, cost, KV_TOKENS)
    about = {"device": device, "model": opened.name, "dtype": opened.dtype, "machine": machine(),
             "versions": versions()}  # fmt: skip
    write_whole(file, json.dumps(as_json(profile, cost, about), indent=1) + "\n", f"--out {file}")
    tell(Console(highlight=False, emoji=False), cost, file)
    return 0


KV_TOKENS = 65_536  # of the profile's pool, for replay; a round figure
MICROSECONDS = 1000
SHOWN_TOKENS = (1, 8, 128)


def check_file(file: Path) -> Path:
    """A file that the profile can be written to.

    Raises:
        ValueError: it can't, or ``--profile`` would not take its name for a file.
    """
    if file.suffix != ".json":
        raise ValueError(f"--out {file} must end in .json.")
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(f"--out {file} can't be written: there is no folder {file.parent}.")
    return file


def tell(console: Console, cost: MeasuredCost, file: Path) -> None:
    """What was found, in a few lines."""
    serial = cost.loops["serial"]
    host = sum(serial.base.values()) + sum(serial.after.values())
    passes = ", ".join(
        f"{tokens} tokens {cost.forward(tokens) / 1e6:.2f} ms" for tokens in SHOWN_TOKENS
    )
    console.print(f"A forward pass without attention: {passes}.")
    console.print(f"The host's phases of a serial step: {host / MICROSECONDS:.0f} us.")
    console.print(
        f"While both work, the host loses {cost.pace.host_lost / 10:.1f} % of its time, the device "
        f"{cost.pace.device_lost / 10:.1f} %."
    )
    say(console, f"written: {file}; try this:")
    say_command(console, f"minisched compare --device sim --profile {file}")
