"""``minisched bench prediction``: how far ``sim`` is from the clock."""

from __future__ import annotations

from pathlib import Path

from ..bench.calibrate import check_model
from ..bench.figures import Figure, not_measured, opened
from ..bench.prediction import AIM, prediction
from ..models.llama import AUTO
from .bench import BenchCall, check_real_time, on_devices
from .options import choose_loops

USUAL = {"mlx": "small"}  # stock MLX on a CPU takes seconds for a prompt of SmolLM2


def measure(call: BenchCall) -> list[Figure]:
    """By how much makespan and speed-up of each loop are off, on the device named or on both.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "requests", "max_new_tokens")
    return on_devices(call, on_device, missing)


def on_device(call: BenchCall) -> list[Figure]:
    """The rows of one device."""
    device = call.workload().device
    check_real_time(call.workload())
    name = call.model or USUAL.get(device, "smollm2")
    with opened(name, device, call.dtype or AUTO) as model:
        check_model(model)
        loops = choose_loops(["all"], device, only_serial=False)
        title = f"{device}, {Path(name).name}"
        return prediction(title, device, model, loops, call.repetitions, call.report)


def missing(device: str, reason: str) -> Figure:
    """The row of a device that is not there."""
    return not_measured(f"{device}: makespans, off by", "%", reason, AIM)
