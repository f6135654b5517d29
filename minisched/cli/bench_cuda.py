"""``minisched bench cuda``: the whole measurement of one GPU, in one call.

The weights are random and lie in memory meanwhile. The race check reads the recorded runs; torch's
stream sanitizer watches runs of its own, in a process of its own, since it slows them down.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..bench.cuda import (
    COMMON,
    CONTEXT_LEN,
    LOOPS,
    SHAPES,
    GpuLoad,
    TransformersPeer,
    cuda_figures,
    folder_for,
    write_random_llama,
)
from ..bench.figures import FOLDER, Figure, not_measured, ratio
from ..devices.registry import load, open_device
from ..export.native import to_json
from ..export.svg import to_svg
from ..trace import Trace
from ..trace.files import write_whole
from .bench import BenchCall

RACE = "CSAN detected a possible data race"
LIMIT_S = 240  # seconds that the sanitizer may take
FEWEST = 16  # new tokens: with less there is no steady decode


def measure(call: BenchCall) -> list[Figure]:
    """Both shapes, or the one that ``--model`` names.

    Raises:
        ValueError: torch sees no GPU, or an option is bad; nothing has run then.
    """
    call.refuse("nano_vllm", "vidur", "dtype")
    if call.device not in (None, "cuda"):
        raise ValueError(f"--device is {call.device!r}, but bench cuda measures cuda only.")
    if call.model is not None and call.model not in SHAPES:
        raise ValueError(f"--model is {call.model!r}; bench cuda knows {', '.join(SHAPES)}.")
    asked = load_of(call)
    open_device("cuda").close()
    shapes = [call.model] if call.model else list(SHAPES)
    found = []
    for shape in shapes:
        settings = {**COMMON, **SHAPES[shape]}
        with folder_for(settings) as folder:
            try:
                found += one_shape(shape, settings, Path(folder), asked, call)
            except RuntimeError as error:  # out of memory, for one: the other shape still counts
                reason = str(error).splitlines()[0]
                found.append(not_measured(f"{shape}: everything", "ratio", reason))
    return found


def load_of(call: BenchCall) -> GpuLoad:
    """The usual load, or as many requests and tokens as were asked for.

    Raises:
        ValueError: there are too few or too many.
    """
    usual = GpuLoad()
    rows = usual.rows if call.requests is None else call.requests
    new = usual.new_tokens if call.max_new_tokens is None else call.max_new_tokens
    most = CONTEXT_LEN - usual.prompt_len
    if rows < 1:
        raise ValueError(f"--requests is {rows}, but it must be at least 1.")
    if not FEWEST <= new <= most:
        raise ValueError(f"--max-new-tokens is {new}, but it must be between {FEWEST} and {most}.")
    return GpuLoad(rows, new_tokens=new)


def one_shape(
    shape: str, settings: dict[str, Any], folder: Path, asked: GpuLoad, call: BenchCall
) -> list[Figure]:
    """Speed and occupancy, then the sanitizer."""
    call.report(f"drawing {shape} weights")
    write_random_llama(folder, settings, "cuda")
    graphs = load("minisched.models.llama_graphs", "LlamaGraphs", "torch", "bench cuda")
    model = graphs(folder, "bfloat16", context_len=CONTEXT_LEN, scripted=False)
    peer = partial(TransformersPeer, folder, asked)
    keep = partial(keep_pair, Path.cwd() / FOLDER / "cuda", shape)
    found = cuda_figures(shape, settings, model, peer, asked, call.repetitions, call.report, keep)
    return [*found, *(sanitized(shape, loop, folder, call) for loop in LOOPS)]


def keep_pair(folder: Path, shape: str, loop: str, measured: Trace, foreseen: Trace) -> None:
    """Write a run by CUDA's events and the one that ``sim`` foresaw, and both in one picture."""
    for name, trace in {"measured": measured, "foreseen": foreseen}.items():
        path = folder / f"{shape}-{loop}-{name}.json"
        write_whole(path, to_json(trace), with_folders=True)
    picture = to_svg([measured, replace(foreseen, loop=f"{loop}: foreseen")])
    write_whole(folder / f"{shape}-{loop}.svg", picture)


def sanitized(shape: str, loop: str, folder: Path, call: BenchCall) -> Figure:
    """How many races torch's stream sanitizer reports of a short run."""
    name = f"{shape}: {loop} without graphs, reports of torch's stream sanitizer"
    call.report(name)
    command = [
        sys.executable, "-m", "minisched.bench.sanitized", str(folder), loop,
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
