"""What ``clear_cache`` does to MLX's memory, decode by decode: figures and a picture.

``minisched diagrams mlx_memory`` draws ``traces/mlx_memory.svg`` where MLX is installed; the one
that is kept was measured on the Linux CPU build. It is drawn only when it is named, and ``--check``
leaves it out, because memory is the process's. On sim there is no memory to count: a run there
shows when the cache is cleared, and nothing more.
"""

from __future__ import annotations

import gc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..core import Request
from ..devices.registry import load, open_device
from ..loops.run import Run, run_loop
from ..models.llama import write_tiny_llama
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .recipes import tokens
from .scene import Curve, Part, Scene, Series, about_run
from .scene_svg import to_svg
from .units import MILLISECOND
from .views.marks import NothingToShow

# -- A run of MLX's loop with memory counted -------------------------------------------------------

LLAMA: dict[str, Any] = {
    "hidden": 256,
    "kv_heads": 4,
    "intermediate": 256,
}  # small, and with wide keys
CACHE_LIMIT = 1 << 30  # bytes; stock MLX on a CPU stops at 32 MiB, on Metal it does not


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


MIB = 1 << 20
Reading = tuple[int, int]  # (finalized decodes so far, bytes); a clearing gives one more


def readings(trace: Trace, name: str) -> list[Reading]:
    """A counter (``devices/mlx.py:count_memory``) by decodes; a clearing belongs to its decode."""
    found: list[Reading] = []
    left = [mark.time for mark in trace.marks if mark.name == "clear cache"]
    for item in trace.counters:
        if item.name != name:
            continue
        was_cleared = bool(left) and left[0] <= item.time
        if was_cleared:
            left.pop(0)
        decodes = found[-1][0] if found else 0
        found.append((decodes if was_cleared else decodes + 1, item.value))
    return found


def draw_memory(every: int = 16) -> str:
    """Measure both runs and draw them.

    Raises:
        ValueError: MLX is not installed, or cannot be used here.
    """
    runs = []
    for clear_cache_every in (0, every):
        gc.collect()  # what other runs have left must not go while this one counts
        with TemporaryDirectory() as folder:
            runs.append(memory_run(Path(folder) / "tiny_llama", clear_cache_every))
    return to_svg(memory_picture(runs[0].trace, runs[1].trace, every))


def memory_picture(without: Trace, cleared: Trace, every: int) -> Scene:
    """Cached bytes with and without clearing, and what is in use, decode by decode.

    Raises:
        NothingToShow: the device counted no memory.
    """
    kept, given_back = readings(without, "cache memory"), readings(cleared, "cache memory")
    if not (kept and given_back):
        raise NothingToShow("the trace has no cache memory counter: its device keeps no cache.")
    said = [
        [mark.attrs for mark in run.marks if mark.name == "tokens"] for run in (without, cleared)
    ]
    same = "the same" if said[0] == said[1] else "not the same"
    words = {
        "line second": "cached, never cleared",
        "line": f"cached, cleared every {every} finalized decodes",
        "line third": "in use",
    }
    lines = (kept, given_back, readings(cleared, "active memory"))
    series = [
        Series(name, kind, [(at * MILLISECOND, value) for at, value in values])
        for (kind, name), values in zip(words.items(), lines, strict=True)
    ]
    last = max(kept[-1][0], given_back[-1][0]) * MILLISECOND
    most = [max(value for _, value in line) / MIB for line in (kept, given_back)]
    curve = Curve(series, last, "MiB", scale=MIB, across="decodes")
    return Scene(
        f"mlx_async: {most[0]:.1f} MiB cached at most without clear_cache, {most[1]:.1f} with it",
        about_run(cleared),
        [Part("Memory", "after each finalized decode", [curve])],
        words,
        [f"The tokens are {same}."],
    )
