"""The workload of a bench on a real device: every request runs to its length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..bench.case import Case
from ..bench.rows import Figure
from ..devices.registry import MissingExtra, load, open_device
from .bench_call import BenchCall
from .options import WorkloadOptions
from .room import make_config
from .scheduler_options import SchedulerOptions

DEVICES = ("thread", "mlx")
SHORTEST = 10  # tokens: fewer steps than that are all beginning and end


def make_case(workload: WorkloadOptions) -> Case:
    """The workload; every request runs to its length, so that all loops do the same work.

    Raises:
        ValueError: on a virtual clock nothing is measured, or requests are too short.
    """
    check_real_time(workload)
    model = workload.open_model()
    requests = workload.make_requests(model, ignore_eos=True)
    config = make_config(SchedulerOptions(), model, requests)
    return Case(workload.device, model, requests, config)


def on_devices(
    call: BenchCall,
    measure: Callable[[BenchCall], list[Figure]],
    missing: Callable[[str, str], Figure],
) -> list[Figure]:
    """What is measured on the device named, or on ``thread`` and ``mlx``.

    Where nobody named a device and one is not there, ``missing`` is told which, and the reason.
    """
    if call.device is not None:
        return measure(call)
    rows = []
    for device in DEVICES:
        try:
            rows += measure(replace(call, device=device))
        except MissingExtra as error:
            rows.append(missing(device, str(error)))
    return rows


def check_real_time(workload: WorkloadOptions) -> None:
    """Refuse what can't be measured.

    Raises:
        ValueError: on a virtual clock nothing is measured, or requests are too short.
    """
    device = open_device(workload.device)
    device.close()
    if device.clock == "virtual":
        raise ValueError(f"bench measures real time, which --device {workload.device} has none of.")
    if workload.sampling.max_new_tokens < SHORTEST:
        raise ValueError(
            f"--max-new-tokens is {workload.sampling.max_new_tokens}, "
            f"but a bench needs at least {SHORTEST}."
        )


def find_folder(workload: WorkloadOptions) -> Path:
    """Where the model's weights are, for the library it is compared with."""
    find_model = load("minisched.models.weights", "find_model", "dev", "bench generation")
    return Path(find_model(workload.model))
