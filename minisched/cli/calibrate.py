"""``minisched calibrate``: the costs of steps on this machine, as a profile for ``sim``."""

from __future__ import annotations

import json
from pathlib import Path

from ..bench.calibrate import fit_costs
from ..bench.figures import machine, versions
from ..devices.registry import open_device
from ..models.checkpoint import AUTO
from ..models.registry import open_model
from ..replay.profiles import Profile, as_json
from ..trace.files import write_whole
from .layout import say, say_command, work_progress
from .options import DTYPE_HELP, MODEL_HELP, choose_loops, setting

KV_TOKENS = 65_536  # of the profile's pool, for replay; a round figure
SHOWN_TOKENS = (1, 8, 128)


def calibrate(
    device: str = setting("thread", "thread, cuda or mlx."),
    model: str = setting("smollm2", MODEL_HELP),
    dtype: str = setting(AUTO, DTYPE_HELP),
    loops: str | None = setting(None, "Loops, separated by commas; all that run on the device."),
    out: Path | None = setting(None, "The profile's file; DEVICE-MODEL.json here."),
    repeat: int = setting(3, "Interleaved repetitions.", least=1, most=1000),
) -> int:
    """Measure what steps cost on this machine, for compare, run and replay --profile FILE.

    It runs a few designed workloads through every loop, and fits costs to their
    traces.
    """
    opened_device = open_device(device)
    opened_device.close()
    if opened_device.clock == "virtual":
        raise ValueError(f"calibrate measures real time, which --device {device} has none of.")
    names = choose_loops((loops or "all").split(","), device, only_serial=False)
    opened = open_model(model, device, dtype)
    file = out or Path(f"{device}-{opened.name}.json")
    if file.suffix != ".json":
        raise ValueError(f"--out {file} must end in .json.")
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(f"--out {file} can't be written: there is no folder {file.parent}.")
    with work_progress() as work:
        work.at("warming up")
        cost = fit_costs(device, opened, names, repeat, report=work.at)
    computing = f"{opened.name} on {device}" + f" in {opened.dtype}" * bool(opened.dtype)
    description = f"{computing}, measured with {repeat} repetitions"
    profile = Profile(file.stem, description, cost, KV_TOKENS)
    about = {"device": device, "model": opened.name, "dtype": opened.dtype, "machine": machine(),
             "versions": versions()}  # fmt: skip
    write_whole(file, json.dumps(as_json(profile, cost, about), indent=1) + "\n", f"--out {file}")
    serial = cost.loops["serial"]
    host = sum(serial.base.values()) + sum(serial.after.values())
    passes = ", ".join(f"{n} tokens {cost.forward(n) / 1e6:.2f} ms" for n in SHOWN_TOKENS)
    say(f"A forward pass without attention: {passes}.")
    say(f"The host's phases of a serial step: {host / 1000:.0f} us.")
    say(
        f"While both work, the host loses {cost.pace.host_lost / 10:.1f} % of its time, the device "
        f"{cost.pace.device_lost / 10:.1f} %."
    )
    say(f"written: {file}; try this:")
    say_command(f"minisched compare --device sim --profile {file}")
    return 0
