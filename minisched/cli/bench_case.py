"""The workload of a bench on a real device: every request runs to its length."""

from __future__ import annotations

from pathlib import Path

from ..bench.overlap.hidden import Case
from ..devices.registry import load, open_device
from .options import WorkloadOptions
from .room import make_config
from .scheduler_options import SchedulerOptions

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
