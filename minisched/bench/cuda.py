"""One GPU: is it busy in steady decode, how near its limit is a step, and who is faster.

An op's slice lasts from the moment the GPU reaches it. Launched kernel by kernel, the gaps between
kernels count as the op's; in a graph there are none. So busy is said of graphs.
"""

from __future__ import annotations

import gc
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ..checks.overlap import device_busy, forwards, intersection, length, step_intervals
from ..checks.races import find_races
from ..core import Request, SamplingParams
from ..devices.registry import open_device
from ..export.native import to_json
from ..export.runs import compare
from ..export.scene_svg import to_svg
from ..loops.run import Run, run_to_end
from ..models.base import Model
from ..models.fetch import model_home
from ..scheduler import SchedulerConfig
from ..trace import Trace
from ..trace.files import write_whole
from .calibrate import (
    WORK,
    CalibrationDesign,
    CalibrationLoad,
    fit_costs,
    makespan,
    observe_all,
    stand_in,
)
from .figures import (
    FOLDER,
    BenchCall,
    BenchPart,
    Figure,
    Measure,
    contest,
    figure,
    not_measured,
    ratio,
)
from .peers.peer import Peer, PeerError
from .prediction import off, row

# -- Llamas of published shapes with random weights: what a step costs does not depend on them -----

MEMORY = Path("/dev/shm")  # a file system in memory, where there is one
SHAPES: dict[str, dict[str, Any]] = {
    "1B": {  # meta-llama/Llama-3.2-1B, config.json; its head is tied
        "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 8192, "head_dim": 64,
    },
    "8B": {  # meta-llama/Llama-3.1-8B, config.json
        "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "head_dim": 128,
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "rope_parameters": {"rope_theta": 500_000.0, "rope_type": "default"},
    "tie_word_embeddings": False,  # tied, random weights repeat one token
    "eos_token_id": 128_001,
    "dtype": "bfloat16",
}


def folder_for(settings: dict[str, Any]) -> TemporaryDirectory[str]:
    """A folder that is gone afterwards; in memory, where that has room for the weights."""
    needed = 2 * (num_parameters(settings) + settings["vocab_size"] * settings["hidden_size"])
    has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 1.1 * needed
    return TemporaryDirectory(dir=MEMORY if has_room else None)


def write_random_llama(directory: Path, settings: dict[str, Any], device: str = "cpu") -> Path:
    """Write config.json and model.safetensors in bfloat16, drawn on ``device``; give the directory.

    A norm is ones, a matrix [out, in] has the standard deviation 1 / sqrt(in).
    """
    import torch
    from safetensors.torch import save_file

    from ..models.llama import LlamaConfig

    config = LlamaConfig.from_json(settings, {}, where=str(directory))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    draw = torch.Generator(device).manual_seed(0)
    tensors = {}
    for name, shape in config.tensor_shapes():
        tensor = torch.ones(shape, dtype=torch.bfloat16, device=device)
        if len(shape) > 1:
            tensor.normal_(0, shape[-1] ** -0.5, generator=draw)
        tensors[name] = tensor.cpu()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def num_parameters(settings: dict[str, Any]) -> int:
    """Weights that every decode step reads: all but the embeddings, of which it reads rows."""
    from ..models.llama import LlamaConfig

    config = LlamaConfig.from_json(settings, {}, where="settings")
    sizes = (
        (name, shape[0] * (shape[1] if len(shape) > 1 else 1))
        for name, shape in config.tensor_shapes()
    )
    return sum(size for name, size in sizes if "embed_tokens" not in name)


# -- One shape on every loop, beside transformers --------------------------------------------------

LOOPS = ("overlap", "serial", "vllm_batch_queue")
BUSY_AIM = 98.0  # percent, with overlap
LIMIT_AIM = 2.0  # times the limit, at most
BYTES = 2  # of a weight and of a cached number: bfloat16
PAGE = 16  # tokens
CHUNK = 2048  # tokens of prompts in a step
CONTEXT_LEN = 1024  # tokens, of the models measured
FEWEST = 16  # new tokens: with less there is no steady decode
FEW = 2  # new tokens of the untimed run before each timed one
DEVICE = "cuda"
PEER = "transformers continuous"


@dataclass(frozen=True)
class GpuLoad:
    """So many requests of one length, all at once."""

    rows: int = 32
    prompt_len: int = 512
    new_tokens: int = 128

    def requests(self) -> list[Request]:
        """Prompts that share nothing."""
        params = SamplingParams(max_new_tokens=self.new_tokens, ignore_eos=True)
        return [
            Request(f"r{row}", [row + 1, *range(100, 99 + self.prompt_len)], params)
            for row in range(self.rows)
        ]

    def config(self) -> SchedulerConfig:
        """Room for all of them."""
        length = -(-(self.prompt_len + self.new_tokens) // PAGE) * PAGE + 2 * PAGE
        return SchedulerConfig(
            kv_tokens=self.rows * length, page_size=PAGE, max_running_requests=self.rows,
            chunked_prefill_size=CHUNK, disable_radix_cache=True,
        )  # fmt: skip

    def bytes_per_step(self, settings: dict[str, Any]) -> float:
        """What the median decode step reads at least: each weight, and each row's KV once."""
        width = settings["num_key_value_heads"] * settings["head_dim"]
        kv = 2 * settings["num_hidden_layers"] * width * BYTES
        seen = self.rows * (self.prompt_len + self.new_tokens / 2)
        return float(num_parameters(settings) * BYTES + kv * seen)


def load_of(requests: int | None, max_new_tokens: int | None) -> GpuLoad:
    """The usual load, or as many requests and tokens as were asked for.

    Raises:
        ValueError: there are too few or too many tokens.
    """
    usual = GpuLoad()
    new = usual.new_tokens if max_new_tokens is None else max_new_tokens
    most = CONTEXT_LEN - usual.prompt_len
    if not FEWEST <= new <= most:
        raise ValueError(f"--max-new-tokens is {new}, but it must be between {FEWEST} and {most}.")
    return GpuLoad(usual.rows if requests is None else requests, new_tokens=new)


def shape_rows(
    shape: str, settings: dict[str, Any], folder: Path, model: Model, load: GpuLoad, call: BenchCall
) -> list[Figure]:
    """Tokens a second beside transformers; then how busy, how near its limit, and how foreseen.

    What is made once (weights, KV, graphs) is there before anything is timed, and stays. Before
    each run of ours the allocator is emptied and the loop says a few tokens, so that what one arm
    leaves is not another's to pay for.
    """
    runs: dict[str, list[Run]] = {loop: [] for loop in LOOPS}

    def answer(loop: str, new_tokens: int) -> Run:
        requests = replace(load, new_tokens=new_tokens).requests()
        return run_to_end(loop, DEVICE, model, requests, load.config())

    def ours(loop: str) -> float:
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        answer(loop, FEW)
        start = time.perf_counter()
        runs[loop].append(answer(loop, load.new_tokens))
        return load.rows * load.new_tokens / (time.perf_counter() - start)

    for loop in LOOPS:  # kernels are chosen, graphs are captured
        call.report(f"warming up {loop}")
        answer(loop, load.new_tokens)
    arms: dict[str, Measure | str] = {loop: partial(ours, loop) for loop in LOOPS}
    question = {"prompts": [list(request.prompt) for request in load.requests()],
                "new_tokens": load.new_tokens}  # fmt: skip
    told = {"device": DEVICE, "folder": str(folder), "dtype": "bfloat16", "threads": 1,
            "rival": PEER}  # fmt: skip
    with ExitStack() as stack:
        try:
            script = f"{__package__}.peers.transformers_generate"
            peer = stack.enter_context(Peer.start(script, told, model_home(), call.report))
            peer.ask(question)
            arms[PEER] = lambda: load.rows * load.new_tokens / float(peer.ask(question)["seconds"])
        except PeerError as error:
            arms[PEER] = str(error)
        rows = contest(shape, arms, "tokens/s", {PEER: 1.0}, call, at_most=False)
    bandwidth = [bytes_per_second() for _ in range(call.repetitions)]
    limit_ms = [1e3 * load.bytes_per_step(settings) / each for each in bandwidth]
    rows.append(figure(f"{shape}: a step's memory at the measured bandwidth", limit_ms, "ms"))
    for loop, kept in runs.items():
        steps = [steady_step_ms(run.trace) for run in kept]
        busy = [steady_busy_percent(run.trace) for run in kept]
        races = [float(len(find_races(run.trace))) for run in kept]
        aim = BUSY_AIM if loop == "overlap" else None
        rows += [
            figure(f"{shape}: {loop}, GPU busy in steady decode", busy, "%", aim),
            figure(f"{shape}: {loop}, a step in steady decode", steps, "ms"),
            ratio(f"{shape}: {loop}, a step / its limit", steps, limit_ms, LIMIT_AIM),
            figure(f"{shape}: {loop}, races", races, "races", 0.0, at_most=True),
        ]
    return rows + foreseen_rows(shape, model, runs, load, call)


def bytes_per_second(size: int = 1 << 32) -> float:
    """What copying ``size`` bytes within the GPU's memory reads and writes."""
    import torch

    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    target.copy_(source)
    end.record()
    end.synchronize()
    return float(2 * size / start.elapsed_time(end) * 1e3)


# -- The steady part of a run ----------------------------------------------------------------------

SETTLED = 3  # steps at each end that are left out


def steady_busy_percent(trace: Trace) -> float:
    """The share of the time between settled decode steps in which the device was busy.

    Raises:
        ValueError: the run has too few steps.
    """
    decodes = [item for item in forwards(trace) if item.mode == "decode"][SETTLED:-SETTLED]
    if len(decodes) < 2:
        raise ValueError(f"a run of {len(forwards(trace))} steps has no steady part.")
    whole = ((decodes[0].start, decodes[-1].start),)
    return 100 * length(intersection(device_busy(trace), whole)) / length(whole)


def steady_step_ms(trace: Trace) -> float:
    """The median time from one settled step's forward pass to the next one's."""
    return median(step_intervals(trace)[SETTLED:-SETTLED]) / 1e6


# -- What the simulator says of the same load, by costs that were measured on this GPU -------------

REPETITIONS = 2  # of the workloads that costs are fitted to
SHORT, NEW = 64, 16  # tokens of a prompt at least, where it does not matter, and of an answer
MILLISECOND = 1e6  # nanoseconds


def design_of(requests: Sequence[Request], config: SchedulerConfig) -> CalibrationDesign:
    """What costs are fitted to: up to as many rows as requests, and prompts and steps as long.

    Decodes run as graphs, prompts kernel by kernel. Both lie on one line of costs, so a step of
    prompts has more tokens than any decode has rows. All take the same memory: it is part of a
    graph.
    """
    rows, prompt_len = len(requests), max(len(request.prompt) for request in requests)
    short = min(prompt_len, max(SHORT, 2 * rows))
    counts = [1 << power for power in range((rows - 1).bit_length())]
    decodes = [CalibrationLoad(count, short, NEW) for count in (*counts, rows)]
    prompts = [CalibrationLoad(min(2, rows), prompt_len, 2), CalibrationLoad(rows, prompt_len, NEW)]
    every = [CalibrationLoad(rows, short, NEW), CalibrationLoad(rows, short, NEW, WORK)]
    return CalibrationDesign([*decodes, *prompts], every, config)


def foreseen_rows(
    shape: str, model: Model, runs: Mapping[str, Sequence[Run]], load: GpuLoad, call: BenchCall
) -> list[Figure]:
    """For each loop the makespan measured, the one foreseen, and by how much that is off.

    Costs come from other workloads (``minisched calibrate``), those of ``design_of``: nothing of
    ``runs`` is fitted to. With ``--keep`` both runs of each loop are kept, and their picture.
    """
    config, loops = load.config(), list(runs)
    design = design_of(load.requests(), config)
    observe_all(DEVICE, model, loops, report=call.report, design=design)  # captures graphs
    cost = fit_costs(DEVICE, model, loops, REPETITIONS, report=call.report, design=design)
    rows = []
    for loop, kept in runs.items():
        call.report(f"predicting {loop}")
        measured = [makespan(run.trace) for run in kept]
        twin = run_to_end(loop, "sim", stand_in(model), load.requests(), config, cost).trace
        if call.keep:
            keep_pair(Path.cwd() / FOLDER / "cuda", shape, loop, kept[-1].trace, twin)
        foreseen = makespan(twin)
        name = f"{shape}: {loop}, makespan"
        rows += [
            figure(name, [each / MILLISECOND for each in measured], "ms"),
            figure(f"{name} that sim predicts", [foreseen / MILLISECOND], "ms"),
            row(f"{name}, off by", [off(foreseen, each) for each in measured]),
        ]
    return rows


def keep_pair(folder: Path, shape: str, loop: str, measured: Trace, foreseen: Trace) -> None:
    """Write a run by CUDA's events and the one that ``sim`` foresaw, and both in one picture."""
    for name, trace in {"measured": measured, "foreseen": foreseen}.items():
        path = folder / f"{shape}-{loop}-{name}.json"
        write_whole(path, to_json(trace), with_folders=True)
    picture = to_svg(compare([measured, replace(foreseen, loop=f"{loop}: foreseen")]))
    write_whole(folder / f"{shape}-{loop}.svg", picture)


# -- The whole measurement of one GPU --------------------------------------------------------------


def cuda_rows(call: BenchCall) -> list[Figure]:
    """One shape, which ``--model`` names, or all, with random weights that lie in memory meanwhile.

    Raises:
        ValueError: there is no such shape, or torch sees no GPU; nothing has run then.
    """
    if call.model is not None and call.model not in SHAPES:
        raise ValueError(f"--model is {call.model!r}; bench cuda knows {', '.join(SHAPES)}.")
    load = load_of(call.requests, call.max_new_tokens)
    open_device(DEVICE).close()
    from ..models.llama_graphs import LlamaGraphs

    rows = []
    for name in [call.model] if call.model else SHAPES:
        settings = {**COMMON, **SHAPES[name]}
        with folder_for(settings) as text:
            folder = Path(text)
            try:
                call.report(f"drawing {name} weights")
                write_random_llama(folder, settings, DEVICE)
                model = LlamaGraphs(folder, "bfloat16", context_len=CONTEXT_LEN, scripted=False)
                rows += shape_rows(name, settings, folder, model, load, call)
            except RuntimeError as error:  # out of memory, for one: the other shape still counts
                reason = str(error).splitlines()[0]
                rows.append(not_measured(f"{name}: everything", "ratio", reason))
    return rows


PART = BenchPart(cuda_rows, ("device", "model", "requests", "max_new_tokens"), (DEVICE,))
