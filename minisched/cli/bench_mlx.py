"""``minisched bench mlx``: what caches copy, and when two lazy graphs pay."""

from __future__ import annotations

from ..bench.figures import NAME, Figure, opened
from ..devices.registry import load
from .bench import BenchCall


def measure(call: BenchCall) -> list[Figure]:
    """Three ways to keep KV, the loop by batch, and prompts that wait.

    Raises:
        ValueError: an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "requests", "max_new_tokens")
    if call.device not in (None, "mlx"):
        raise ValueError(f"--device is {call.device!r}, but bench mlx measures mlx only.")
    answers = load("minisched.bench.mlx", "answers", "mlx", "bench mlx")
    with opened(call.model or NAME, "mlx", *([call.dtype] if call.dtype else [])) as model:
        figures: list[Figure] = answers(model, call.repetitions, call.report)
    return figures
