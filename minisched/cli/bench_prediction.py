"""``minisched bench prediction``: how far ``sim`` is from the clock."""

from __future__ import annotations

from ..bench.calibration.calibrate import check_model
from ..bench.calibration.prediction import AIM, prediction
from ..bench.rows import Figure, not_measured
from .bench_call import BenchCall
from .bench_case import check_real_time, on_devices
from .loop_choice import choose_loops


def measure(call: BenchCall) -> list[Figure]:
    """By how much makespan and speed-up of each loop are off, on the device named or on both.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "requests", "max_new_tokens")
    return on_devices(call, on_device, missing)


def on_device(call: BenchCall) -> list[Figure]:
    """The rows of one device."""
    workload = call.workload()
    check_real_time(workload)
    model = workload.open_model()
    check_model(model)
    loops = choose_loops(["all"], workload.device, only_serial=False)
    return prediction(workload.device, model, loops, call.repetitions, call.report)


def missing(device: str, reason: str) -> Figure:
    """The row of a device that is not there."""
    return not_measured(f"{device}: makespans, off by", "%", reason, AIM)
