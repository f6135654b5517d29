"""``minisched calibrate``: what steps cost on this machine, as a profile for ``sim``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from ..bench.calibrate import check_model, fit_costs
from ..bench.figures import machine, versions
from ..devices.profiles import MeasuredCost, Profile, as_json
from ..devices.registry import open_device
from ..models.llama import AUTO
from ..models.registry import open_model
from ..trace.files import write_whole
from .exit import exit_with
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
) -> None:
    """Measure what steps cost on this machine, for compare, run and replay --profile FILE.

    Runs a few designed workloads through every loop, and fits costs to their traces.
    """

    exit_with(lambda: run_calibrate(device, model, dtype, loops, out, repeat))


KV_TOKENS = 65_536  # of the profile's pool, for replay; a round figure
MICROSECONDS = 1000
SHOWN_TOKENS = (1, 8, 128)


def run_calibrate(
    device: str,
    model_name: str,
    dtype: str,
    loops: str | None,
    out: Path | None,
    repetitions: int,
) -> int:
    """Measure, write the profile and say what is in it; returns the exit code.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    if repetitions < 1:
        raise ValueError(f"--repeat is {repetitions}, but it must be at least 1.")
    check_real_time(device)
    names = choose_loops((loops or "all").split(","), device, only_serial=False)
    model = open_model(model_name, device, dtype)
    check_model(model)
    file = check_file(out or Path(f"{device}-{model.name}.json"))
    with Console(stderr=True).status("warming up") as status:
        cost = fit_costs(device, model, names, repetitions, report=status.update)
    computing = f"{model.name} on {device}" + f" in {model.dtype}" * bool(model.dtype)
    description = f"{computing}, measured with {repetitions} repetitions"
    profile = Profile(file.stem, description, cost, KV_TOKENS)
    about = {"device": device, "model": model.name, "dtype": model.dtype, "machine": machine(),
             "versions": versions()}  # fmt: skip
    write_whole(file, json.dumps(as_json(profile, cost, about), indent=1) + "\n", f"--out {file}")
    tell(Console(highlight=False, emoji=False), cost, file)
    return 0


def check_real_time(device: str) -> None:
    """Refuse what can't be measured.

    Raises:
        ValueError: the device is unknown, not to be had, or has a virtual clock.
    """
    opened = open_device(device)
    opened.close()
    if opened.clock == "virtual":
        raise ValueError(f"calibrate measures real time, which --device {device} has none of.")


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
    say(console, escape(f"written: {file}; try this:"))
    say_command(console, f"minisched compare --device sim --profile {file}")
