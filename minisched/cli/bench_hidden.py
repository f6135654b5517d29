"""``minisched bench hidden``: host work added to every step of two loops."""

from __future__ import annotations

from ..bench.figures import Figure
from ..bench.overlap import hidden
from ..defaults import overlapped_loop
from .bench import BenchCall, make_case

WORKS_MS = (5.0, 20.0)


def measure(call: BenchCall) -> list[Figure]:
    """What a step costs in both loops, and how much of the work is hidden.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur")
    workload = call.workload()
    loop = overlapped_loop(workload.device)
    return hidden(make_case(workload), loop, WORKS_MS, call.repetitions, call.report)
