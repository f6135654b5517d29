"""What ``clear_cache`` does to MLX's memory decode by decode: figures and a picture.

``minisched diagrams mlx_memory`` draws ``traces/mlx_memory.svg`` where MLX is installed; the one
that is kept was measured on the Linux CPU build. It is drawn only when it is named, and ``--check``
leaves it out, because memory is the process's. On sim there is no memory to count: a run there
shows when the cache is cleared, and nothing more.
"""

from __future__ import annotations

import gc
from bisect import bisect
from pathlib import Path
from tempfile import TemporaryDirectory

from ..core import Request
from ..devices.registry import load, open_device
from ..loops.run import run_loop
from ..models.llama import write_tiny_llama
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .recipes import tokens
from .scene import Curve, Part, Scene, Series, about_run
from .scene_svg import to_svg
from .units import MILLISECOND

EVERY = 16  # decodes
NEW_TOKENS = 128
CACHE_LIMIT = 1 << 30  # bytes; stock MLX on a CPU stops at 32 MiB, on Metal it does not
MIB = 1 << 20
LINES = {
    "line second": "cached, never cleared",
    "line": f"cached, cleared every {EVERY} finalized decodes",
    "line third": "in use",
}


def draw_memory() -> str:
    """Measure both runs and draw them.

    Raises:
        ValueError: MLX is not installed, or cannot be used here.
    """
    return to_svg(memory_scene(memory_run(0), memory_run(EVERY)))


def memory_run(clear_cache_every: int) -> Trace:
    """Two long requests through a small Llama on MLX, with the library's memory as counters.

    What a decode reads grows by a token a step, so its arrays never have the size of any that were
    given up before: MLX keeps those, and takes new memory. The cache starts empty.

    Raises:
        ValueError: MLX is not installed, or cannot be used here.
    """
    device = open_device("mlx")
    llama = load("minisched.models.llama_mlx", "LlamaMlx", "mlx", "memory_run")
    import mlx.core as mx

    requests = [Request(rid, range(5 + at, 45 + at), tokens(NEW_TOKENS))
                for at, rid in enumerate("ab")]  # fmt: skip
    config = SchedulerConfig(kv_tokens=2 * (NEW_TOKENS + 64))
    gc.collect()  # what other runs have left must not go while this one counts
    limit = mx.set_cache_limit(CACHE_LIMIT)
    mx.clear_cache()
    try:
        with TemporaryDirectory() as folder:  # small, and with wide keys
            path = Path(folder) / "tiny_llama"
            model = llama(write_tiny_llama(path, hidden=256, kv_heads=4, intermediate=256))
            return run_loop(
                "mlx_async", device, model, requests, config, clear_cache_every=clear_cache_every
            ).trace
    finally:
        mx.set_cache_limit(limit)


def memory_scene(without: Trace, cleared: Trace) -> Scene:
    """Cached bytes with and without clearing, and what is in use."""
    read = (without, "cache memory"), (cleared, "cache memory"), (cleared, "active memory")
    values = [by_decode(*each) for each in read]
    series = [Series(name, kind, line)
              for (kind, name), line in zip(LINES.items(), values, strict=True)]  # fmt: skip
    kept, given_back = (max(value for _, value in line) / MIB for line in values[:2])
    said = [[mark.attrs for mark in run.marks if mark.name == "tokens"]
            for run in (without, cleared)]  # fmt: skip
    curve = Curve(series, NEW_TOKENS * MILLISECOND, "MiB", scale=MIB, across="decodes")
    return Scene(
        f"mlx_async: {kept:.1f} MiB cached at most without clear_cache, {given_back:.1f} with it",
        about_run(cleared),
        [Part("Memory", "after each finalized decode", [curve])],
        LINES,
        [f"The tokens are {'the same' if said[0] == said[1] else 'not the same'}."],
    )


def by_decode(trace: Trace, name: str) -> list[tuple[int, int]]:
    """A counter by finalized decodes; a clearing gives one reading more, which is its decode's."""
    clearings = [mark.time for mark in trace.marks if mark.name == "clear cache"]
    items = [item for item in trace.counters if item.name == name]
    return [((at - bisect(clearings, item.time)) * MILLISECOND, item.value)
            for at, item in enumerate(items, 1)]  # fmt: skip
