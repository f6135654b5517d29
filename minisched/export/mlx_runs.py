"""Three runs of MLX's loop: beside an excerpt of it, with a finish, and with memory counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core import Request, SamplingParams
from ..devices.cost import SIM_COST
from ..devices.registry import load, open_device
from ..engine.frontend import Frontend
from ..loops.run import Run, drive, run_loop, wire
from ..models.hash import HashModel
from ..models.llama import write_tiny_llama
from ..scheduler import SchedulerConfig
from .mlx_sketch import SKETCH
from .recipes.recipe import tokens

LLAMA: dict[str, Any] = {
    "hidden": 256,
    "kv_heads": 4,
    "intermediate": 256,
}  # small, and with wide keys
CACHE_LIMIT = 1 << 30  # bytes; stock MLX on a CPU stops at 32 MiB, on Metal it does not


def two_requests() -> list[Request]:
    """What the loop and its excerpt run."""
    return [Request("a", range(6), tokens(9)), Request("b", range(10, 18), tokens(9))]


def loop_run() -> Run:
    """The loop itself, on sim."""
    return run_loop("mlx_async", open_device("sim"), HashModel(), two_requests(), cost=SIM_COST)


def sketch_run(hands_over: bool = False) -> Run:
    """The excerpt on the same requests; see ``mlx_sketch`` for ``hands_over``."""
    device, requests = open_device("sim"), two_requests()
    name = "mlx_sketch, handed over" if hands_over else "mlx_sketch"
    engine = wire(
        name, SKETCH, device, HashModel(), SchedulerConfig(), Frontend(requests), SIM_COST
    )
    drive(SKETCH.start(engine, hands_over=hands_over), engine)
    trace = device.recorder.trace(name, device.name, "hash", device.clock)
    return Run(name, tuple(requests), trace)


def finish_run() -> Run:
    """Three requests in one chain: a samples a stop token, b reaches its length, c lives longest.

    MLX foresees neither end, so each wastes the row of the graph in flight.
    """
    stop = SamplingParams(max_new_tokens=12, stop_token_ids=frozenset({A_FOURTH}))
    requests = [
        Request("a", range(6), stop),
        Request("b", range(10, 18), tokens(8)),
        Request("c", range(20, 24), tokens(12)),
    ]
    return run_loop("mlx_async", open_device("sim"), HashModel(), requests, cost=SIM_COST)


A_FOURTH = 8  # the fourth token that the hash model gives to request a


def memory_run(
    folder: Path, clear_cache_every: int, new_tokens: int = 128, cache_limit: int = CACHE_LIMIT
) -> Run:
    """Two long requests through a small Llama on MLX, with the library's memory as counters.

    What a decode reads grows by a token a step, so its arrays never have the size of any that were
    given up before: MLX keeps those, and takes new memory. ``folder`` is for the Llama's random
    weights. The cache starts empty; ``cache_limit`` is the most that MLX may keep, in bytes.

    Raises:
        ValueError: MLX is not installed, or cannot be used here.
    """
    device = open_device("mlx")
    llama = load("minisched.models.llama_mlx", "LlamaMlx", "mlx", "memory_run")
    import mlx.core as mx

    model = llama(write_tiny_llama(folder, **LLAMA))
    requests = [Request(rid, range(5 + at, 45 + at), tokens(new_tokens))
                for at, rid in enumerate("ab")]  # fmt: skip
    config = SchedulerConfig(kv_tokens=2 * (new_tokens + 64))
    limit = mx.set_cache_limit(cache_limit)
    mx.clear_cache()
    try:
        return run_loop("mlx_async", device, model, requests, config,
                        clear_cache_every=clear_cache_every)  # fmt: skip
    finally:
        mx.set_cache_limit(limit)
