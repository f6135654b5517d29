"""``minisched bench tracing``: what recording costs, and what exporters take."""

from __future__ import annotations

from ..bench.figures import Figure, not_measured
from ..bench.tracing import AIM, SLICES, exporters, recording
from ..defaults import overlapped_loop
from .bench import BenchCall, make_case, on_devices


def measure(call: BenchCall) -> list[Figure]:
    """Recording on the device that was named, or on both, then every exporter.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur")
    figures = on_devices(call, on_device, missing)
    return figures + exporters(SLICES, call.repetitions, call.report)


def on_device(call: BenchCall) -> list[Figure]:
    """Recording on one device."""
    case = make_case(call.workload(requests=4, max_new_tokens=96))
    return recording(case, overlapped_loop(case.device), call.repetitions, call.report)


def missing(device: str, reason: str) -> Figure:
    """The row of a device that is not there."""
    return not_measured(f"recording: {overlapped_loop(device)} on {device}", "ratio", reason, AIM)
