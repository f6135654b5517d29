"""``minisched bench prediction``: how far ``sim`` is from the clock."""

from __future__ import annotations

from dataclasses import replace

from ..bench.calibration.calibrate import check_model
from ..bench.calibration.prediction import AIM, prediction
from ..bench.rows import Figure, not_measured
from ..devices.registry import MissingExtra
from .bench_call import BenchCall
from .bench_case import check_real_time
from .loop_choice import choose_loops

DEVICES = ("thread", "mlx")


def measure(call: BenchCall) -> list[Figure]:
    """By how much makespan and speed-up of each loop are off, on the device named or on both.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "requests", "max_new_tokens")
    devices = DEVICES if call.device is None else (call.device,)
    return [row for device in devices for row in on_device(call, device)]


def on_device(call: BenchCall, device: str) -> list[Figure]:
    """One device's; a reason, where nobody named the device and it is not there."""
    workload = replace(call, device=device).workload()
    try:
        check_real_time(workload)
        model = workload.open_model()
    except MissingExtra as error:
        if call.device is not None:
            raise
        return [not_measured(f"{device}: makespans, off by", "%", str(error), AIM)]
    check_model(model)
    loops = choose_loops(["all"], device, only_serial=False)
    return prediction(device, model, loops, call.repetitions, call.report)
