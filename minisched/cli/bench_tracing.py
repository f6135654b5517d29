"""``minisched bench tracing``: what recording costs, and what exporters take."""

from __future__ import annotations

from dataclasses import replace

from ..bench.rows import Figure, not_measured
from ..bench.tracing import AIM, SLICES, exporters, recording
from ..devices.registry import MissingExtra
from .bench_call import BenchCall
from .bench_case import make_case
from .loop_choice import overlapped_loop

DEVICES = ("thread", "mlx")


def measure(call: BenchCall) -> list[Figure]:
    """Recording on the device that was named, or on both, then every exporter.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur")
    devices = DEVICES if call.device is None else (call.device,)
    figures = [row for device in devices for row in on_device(call, device)]
    return figures + exporters(SLICES, call.repetitions, call.report)


def on_device(call: BenchCall, device: str) -> list[Figure]:
    """Recording on one device; a reason, where nobody named the device and it is not there."""
    loop = overlapped_loop(device)
    try:
        case = make_case(replace(call, device=device).workload(requests=4, max_new_tokens=48))
    except MissingExtra as error:
        if call.device is not None:
            raise
        return [not_measured(f"recording: {loop} on {device}", "ratio", str(error), AIM)]
    return recording(case, loop, call.repetitions, call.report)
