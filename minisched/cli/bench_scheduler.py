"""``minisched bench scheduler``: a step's and a tree's cost on the host, beside nano-vllm's."""

from __future__ import annotations

from ..bench.figures import Figure
from ..bench.scheduler import find_nano_vllm, scheduler_figures
from .bench import BenchCall


def measure(call: BenchCall) -> list[Figure]:
    """Each case, ours and theirs, and how ours grows.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("vidur", "device", "model", "requests", "max_new_tokens", "dtype")
    nano, reason = find_nano_vllm(call.nano_vllm)
    return scheduler_figures(nano, reason, call.repetitions, call.report)
