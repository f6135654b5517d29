"""``minisched bench host``: a step's cost on the host by phase, and beside other schedulers'."""

from __future__ import annotations

from ..bench.figures import Figure
from ..bench.host import host_figures
from ..bench.scheduler import find_nano_vllm
from ..models.fetch import model_home
from .bench import BenchCall


def measure(call: BenchCall) -> list[Figure]:
    """Phases, schedulers side by side, and how ours grows.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("vidur", "device", "model", "requests", "max_new_tokens", "dtype")
    nano, reason = find_nano_vllm(call.nano_vllm)
    return host_figures(nano, reason, model_home(), call.repetitions, call.report)
