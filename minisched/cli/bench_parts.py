"""The parts of ``minisched bench``: a module each, ``bench_NAME.py``, whose ``measure`` is called.

A module is loaded when its part is asked for: parts need different libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from ..bench.rows import Figure
from .bench_call import BenchCall

PARTS = {
    "hidden": "how much of the host's work two loops hide",
    "generation": "tokens a second, beside the libraries' own batched generation",
    "scheduler": "what scheduling costs, beside nano-vllm",
    "overlap": "what is hidden of what could be, and what the lock and the cores cost",
    "limit": "decode steps and prefill beside what memory and matrices allow, by part",
    "host": "a step's cost on the host by phase, and beside other engines' schedulers",
    "simulator": "requests and steps simulated a second, beside vidur, and memory",
    "tracing": "what recording costs, and every exporter at 100,000 slices",
    "prediction": "how far sim is from the clock, by a profile measured just before",
    "mlx": "what three kinds of KV caches copy on MLX, and when two lazy graphs pay",
    "cuda": "one GPU: busy in steady decode, the limit of its memory, and transformers",
}


def find_part(name: str) -> Callable[[BenchCall], list[Figure]]:
    """What measures a part.

    Raises:
        ValueError: there is no such part.
    """
    if name not in PARTS:
        raise ValueError(f"unknown part {name!r}; the parts are {', '.join(PARTS)}.")
    measure: Callable[[BenchCall], list[Figure]] = import_module(
        f".bench_{name}", __package__
    ).measure
    return measure
