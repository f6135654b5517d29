"""``minisched bench limit``: a step's time beside what memory and matrices allow."""

from __future__ import annotations

from ..bench.figures import Figure
from ..devices.registry import load
from .bench import BenchCall, find_folder


def measure(call: BenchCall) -> list[Figure]:
    """Decode steps and a prefill on torch, by part.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "requests", "max_new_tokens")
    if call.device not in (None, "thread"):
        raise ValueError(f"--device is {call.device!r}, but bench limit measures thread only.")
    if call.model == "hash":
        raise ValueError("bench limit measures real models, so --model can't be hash.")
    folder = find_folder(call.workload())
    limit = load("minisched.bench.limit", "limit", "torch", "bench limit")
    dtypes = {"dtypes": [call.dtype]} if call.dtype else {}
    figures: list[Figure] = limit(folder, call.repetitions, call.report, **dtypes)
    return figures
