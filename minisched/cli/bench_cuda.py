"""``minisched bench cuda``: the whole measurement of one GPU, in one call.

The weights are random and lie in memory meanwhile. The race check reads the recorded runs; torch's
stream sanitizer watches runs of its own, in a process of its own, since it slows them down.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from ..bench.cuda.cuda import LOOPS, Load, cuda_figures, transformers_peer
from ..bench.cuda.random_llama import COMMON, SHAPES, write_random_llama
from ..bench.rows import Figure, not_measured, ratio
from ..devices.registry import load, open_device
from .bench_call import BenchCall

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
RACE = "CSAN detected a possible data race"
LIMIT_S = 240  # seconds that the sanitizer may take


def measure(call: BenchCall) -> list[Figure]:
    """Both shapes, or the one that ``--model`` names.

    Raises:
        ValueError: torch sees no GPU, or an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur")
    if call.device not in (None, "cuda"):
        raise ValueError(f"--device is {call.device!r}, but bench cuda measures cuda only.")
    if call.model is not None and call.model not in SHAPES:
        raise ValueError(f"--model is {call.model!r}; bench cuda knows {', '.join(SHAPES)}.")
    open_device("cuda").close()
    shapes = [call.model] if call.model else list(SHAPES)
    found = []
    for shape in shapes:
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
            found += one_shape(shape, Path(folder), call)
    return found


def one_shape(shape: str, folder: Path, call: BenchCall) -> list[Figure]:
    """Speed and occupancy, then the sanitizer."""
    settings = {**COMMON, **SHAPES[shape]}
    call.report(f"drawing {shape} weights")
    write_random_llama(folder, settings, "cuda")
    graphs = load("minisched.models.llama_graphs", "LlamaGraphs", "torch", "bench cuda")
    usual = Load()
    asked = Load(
        usual.rows if call.requests is None else call.requests,
        new_tokens=call.max_new_tokens or usual.new_tokens,
    )
    model = graphs(folder, "bfloat16", context_len=1024, scripted=False)
    peer, reason = open_peer(folder)
    found = cuda_figures(shape, settings, model, peer, asked, call.repetitions, call.report)
    if peer is None:
        found.append(not_measured(f"{shape}: transformers / overlap", "ratio", reason, 1.0))
    return [*found, *(sanitized(shape, loop, folder, call) for loop in LOOPS)]


def open_peer(folder: Path) -> tuple[Callable[..., None] | None, str]:
    """transformers on the same weights, or why not."""
    try:
        return transformers_peer(folder), ""
    except ImportError as error:
        return None, f"transformers can't be imported: {error}"


def sanitized(shape: str, loop: str, folder: Path, call: BenchCall) -> Figure:
    """How many races torch's stream sanitizer reports of a short run."""
    name = f"{shape}: {loop}, reports of torch's stream sanitizer"
    call.report(name)
    command = [
        sys.executable, "-m", "minisched", "run", "--device", "cuda", "--model", str(folder),
        "--loop", loop, "--requests", "4", "--max-new-tokens", "16", "--json",
    ]  # fmt: skip
    env = {**os.environ, "TORCH_CUDA_SANITIZER": "1"}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return not_measured(name, "ratio", f"it took more than {LIMIT_S} seconds", 0.0)
    reports = done.stderr.count(RACE)
    if done.returncode and not reports:  # at a race torch raises: then the run fails as well
        last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        return not_measured(name, "ratio", f"the run ended with {done.returncode}: {last}", 0.0)
    return ratio(name, [float(reports)], [1.0], 0.0)
