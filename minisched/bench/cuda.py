"""One GPU: is it busy in steady decode, how near its limit is a step, and who is faster.

An op's slice lasts from the moment the GPU reaches it. Launched kernel by kernel, the gaps between
kernels count as the op's; in a graph there are none. So busy is said of graphs.

Two engines share the GPU, and what one of them leaves must not be the other's to pay for. What is
made once (weights, KV, a manager, graphs) is there before anything is timed, and stays. Before each
timed run, whoever's it is, the allocator is emptied and the same side says a few tokens.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ..checks.overlap import device_busy, forwards, intersection, length, step_intervals
from ..checks.races import find_races
from ..core import Request, SamplingParams
from ..devices.registry import load as load_extra
from ..devices.registry import open_device
from ..export.native import to_json
from ..export.runs import compare
from ..export.scene_svg import to_svg
from ..loops.run import Run, run_to_end
from ..models.base import Model
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
    Report,
    figure,
    interleave,
    not_measured,
    ratio,
)
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


# -- What the simulator says of the same load, by costs that were measured on this GPU -------------

REPETITIONS = 2  # of the workloads that costs are fitted to
SHORT, NEW = 64, 16  # tokens of a prompt at least, where it does not matter, and of an answer
MILLISECOND = 1e6  # nanoseconds
Keep = Callable[[str, Trace, Trace], None]  # is given a loop, its run, and the one foreseen


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


def foreseen_figures(
    shape: str,
    device: str,
    model: Model,
    runs: Mapping[str, Sequence[Run]],
    make_requests: Callable[[], list[Request]],
    config: SchedulerConfig,
    report: Report,
    keep: Keep = lambda loop, measured, foreseen: None,
) -> list[Figure]:
    """For each loop the makespan measured, the one foreseen, and by how much that is off.

    ``keep`` gets the last run of each loop and the one foreseen. Costs come from other workloads
    (``minisched calibrate``), those of ``design_of``: nothing of ``runs`` is fitted to.
    """
    design = design_of(make_requests(), config)
    observe_all(device, model, list(runs), report=report, design=design)  # captures graphs
    cost = fit_costs(device, model, list(runs), REPETITIONS, report=report, design=design)
    found = []
    for loop, kept in runs.items():
        report(f"predicting {loop}")
        measured = [makespan(run.trace) for run in kept]
        twin = run_to_end(loop, "sim", stand_in(model), make_requests(), config, cost).trace
        keep(loop, kept[-1].trace, twin)
        foreseen = makespan(twin)
        errors = [off(foreseen, each) for each in measured]
        name = f"{shape}: {loop}, makespan"
        found += [
            figure(name, [each / MILLISECOND for each in measured], "ms"),
            figure(f"{name} that sim predicts", [foreseen / MILLISECOND], "ms"),
            row(f"{name}, off by", errors),
        ]
    return found


LOOPS = ("serial", "overlap", "vllm_batch_queue")
BUSY_AIM = 98.0  # percent, with overlap
BYTES = 2  # of a weight and of a cached number: bfloat16
PAGE = 16  # tokens
CHUNK = 2048  # tokens of prompts in a step
CONTEXT_LEN = 1024  # tokens, of the models measured
DEVICE = "cuda"
PEER = "transformers, continuous"
PEER_PAGE = 256  # tokens; its default
PEER_SHARE = 0.4  # of the memory that is free when its cache is made: it takes no more
FEW = 2  # new tokens of the untimed run before each timed one
GIB = 1 << 30


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


@dataclass
class Side:
    """Who is measured: ``answer`` says so many tokens for each request of the load.

    ``runs`` and ``beyond`` are of the timed ones; the second is what each took of the GPU's memory,
    in GiB, beyond what the side holds anyway.
    """

    name: str
    answer: Callable[[int], Run | None]
    runs: list[Run] = field(default_factory=list)
    beyond: list[float] = field(default_factory=list)

    def tokens_per_second(self, load: GpuLoad) -> float:
        """One run, prompts included."""
        import torch

        before = held()
        self.answer(FEW)  # what a run takes from the driver, it has taken
        if torch.cuda.is_initialized():
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        run = self.answer(load.new_tokens)
        taken = time.perf_counter() - start
        self.beyond.append((torch.cuda.max_memory_reserved() - before) / GIB)
        self.runs += [run] if run else []
        return load.rows * load.new_tokens / taken


def held() -> int:
    """Bytes of the GPU's memory that somebody keeps; the allocator keeps none for later."""
    import torch

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_reserved())


def shape_figures(
    shape: str,
    settings: dict[str, Any],
    model: Model,
    make_peer: Callable[[], TransformersPeer],
    load: GpuLoad,
    repetitions: int,
    report: Report,
    keep: Keep = lambda loop, measured, foreseen: None,
) -> list[Figure]:
    """One shape on every loop, beside a peer; where that can't be made, a line says why."""
    empty = held()
    sides = [Side(loop, partial(answer, model, loop, load)) for loop in LOOPS]
    for side in sides:  # kernels are chosen, graphs are captured
        report(f"warming up {side.name}")
        side.answer(load.new_tokens)
    ours = held() - empty
    found = [figure(f"{shape}: memory that minisched holds", [ours / GIB], "GiB")]
    report(f"warming up {PEER}")
    peer, reason = warm_peer(make_peer, load)
    if peer:
        theirs = held() - empty - ours
        sides.append(Side(PEER, partial(peer_answer, peer, load)))
        found += [
            figure(f"{shape}: memory that {PEER} holds", [theirs / GIB], "GiB"),
            figure(f"{shape}: {PEER}, its share of what was free", [100 * PEER_SHARE], "%"),
        ]
    measures = {side.name: partial(side.tokens_per_second, load) for side in sides}
    speeds, _ = interleave(measures, repetitions, report)
    if peer:
        peer.close()
    found += [figure(f"{shape}: {side.name}", speeds[side.name], "tokens/s") for side in sides]
    found += [
        figure(f"{shape}: {side.name}, memory of a run beyond that", side.beyond, "GiB")
        for side in sides
    ]
    bandwidth = [bytes_per_second() for _ in range(repetitions)]
    limit_ms = [1e3 * load.bytes_per_step(settings) / each for each in bandwidth]
    found.append(figure(f"{shape}: a step's memory at the measured bandwidth", limit_ms, "ms"))
    runs = {side.name: side.runs for side in sides[: len(LOOPS)]}
    for loop, kept in runs.items():
        steps = [steady_step_ms(run.trace) for run in kept]
        busy = [steady_busy_percent(run.trace) for run in kept]
        aim = BUSY_AIM if loop == "overlap" else None
        races = [float(len(find_races(run.trace))) for run in kept]
        found += [
            figure(f"{shape}: {loop}, GPU busy in steady decode", busy, "%", aim),
            figure(f"{shape}: {loop}, a step in steady decode", steps, "ms"),
            ratio(f"{shape}: {loop}, a step / its limit", steps, limit_ms, 2.0),
            ratio(f"{shape}: {loop}, races", races, [1.0] * len(races), 0.0),
        ]
    name = f"{shape}: transformers / overlap"
    if peer:
        found.append(ratio(name, speeds[PEER], speeds["overlap"], 1.0))
    else:
        found.append(not_measured(name, "ratio", reason, 1.0))
    config = load.config()
    return found + foreseen_figures(shape, DEVICE, model, runs, load.requests, config, report, keep)


def answer(model: Model, loop: str, load: GpuLoad, new_tokens: int) -> Run:
    """One run of ours, in the memory of the whole load: graphs are of that."""
    requests = replace(load, new_tokens=new_tokens).requests()
    return run_to_end(loop, DEVICE, model, requests, load.config())


def peer_answer(peer: TransformersPeer, load: GpuLoad, new_tokens: int) -> None:
    """The same prompts, and as many tokens."""
    peer.generate([list(request.prompt) for request in load.requests()], new_tokens)


def warm_peer(
    make_peer: Callable[[], TransformersPeer], load: GpuLoad
) -> tuple[TransformersPeer | None, str]:
    """The peer, which has answered the load once; or why there is none."""
    peer = None
    try:
        peer = make_peer()
        peer_answer(peer, load, load.new_tokens)
    except Exception as error:  # it may fail in any way; ours is measured all the same
        if peer:
            peer.close()
        return None, f"transformers: {(str(error).splitlines() or [type(error).__name__])[0]}"
    return peer, ""


class TransformersPeer:
    """transformers' continuous batching of the same weights (``ContinuousBatchingManager``).

    Its ``generate_batch`` makes a manager, a cache and CUDA graphs at each call, or at least starts
    and ends a thread and empties the allocator. Here all of that is made once, for one load, with
    twice the room that it needs: where a fifth of the cache is free at most, it admits nobody. It
    shares no prefixes, as ours does not, since every run has the same prompts.
    """

    def __init__(self, folder: Path, load: GpuLoad, device: str = "cuda") -> None:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig
        from transformers.generation import ContinuousBatchingConfig

        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        pages = -(-(load.prompt_len + load.new_tokens) // PEER_PAGE) + 1
        self.manager: Any = loaded.to(device).init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PEER_PAGE, num_blocks=2 * load.rows * pages,
                max_requests_per_batch=load.rows, max_blocks_per_request=pages + pages % 2,
                max_memory_percent=PEER_SHARE, allow_block_sharing=False,
            ),
        )  # fmt: skip
        with torch.no_grad():
            self.manager.warmup()
        self.manager.start()

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> None:
        """Say so many tokens for each prompt, and wait for the last of them.

        Raises:
            RuntimeError: it said fewer, or its thread is gone.
        """
        self.manager.add_requests([*prompts], max_new_tokens=new_tokens)
        made = ended = 0
        while ended < len(prompts):
            output = self.manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                ended, made = ended + 1, made + len(output.generated_tokens)
            elif output is None and not self.manager.is_running():
                raise RuntimeError("the manager's thread has ended")
        if made != len(prompts) * new_tokens:
            raise RuntimeError(f"it made {made} tokens, not {len(prompts) * new_tokens}")

    def close(self) -> None:
        """End its thread, and give weights, cache and graphs back."""
        self.manager.stop(hard_stop=True)
        self.manager.destroy()
        self.manager = None


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


# -- The whole measurement of one GPU --------------------------------------------------------------
#
# The weights are random and lie in memory meanwhile. The race check reads the recorded runs;
# torch's stream sanitizer watches runs of its own, in a process of its own, since it slows them.

RACE = "CSAN detected a possible data race"
LIMIT_S = 240  # seconds that the sanitizer may take
FEWEST = 16  # new tokens: with less there is no steady decode


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


def cuda_rows(call: BenchCall) -> list[Figure]:
    """Speed, occupancy and the sanitizer's reports of one shape (``--model``), or of all.

    With ``--keep`` the pictures of the runs are kept, too.

    Raises:
        ValueError: there is no such shape, or torch sees no GPU; nothing has run then.
    """
    if call.model is not None and call.model not in SHAPES:
        raise ValueError(f"--model is {call.model!r}; bench cuda knows {', '.join(SHAPES)}.")
    load = load_of(call.requests, call.max_new_tokens)
    open_device("cuda").close()
    found = []
    for name in [call.model] if call.model else SHAPES:
        settings = {**COMMON, **SHAPES[name]}
        with folder_for(settings) as text:
            folder = Path(text)
            try:
                call.report(f"drawing {name} weights")
                write_random_llama(folder, settings, "cuda")
                graphs = load_extra("minisched.models.llama_graphs", "LlamaGraphs", "torch",
                                    "bench cuda")  # fmt: skip
                model = graphs(folder, "bfloat16", context_len=CONTEXT_LEN, scripted=False)
                peer = partial(TransformersPeer, folder, load)
                keep = partial(keep_pair, Path.cwd() / FOLDER / "cuda" if call.keep else None, name)
                found += shape_figures(
                    name, settings, model, peer, load, call.repetitions, call.report, keep
                )
                found += [sanitized(name, loop, folder, call.report) for loop in LOOPS]
            except RuntimeError as error:  # out of memory, for one: the other shape still counts
                reason = str(error).splitlines()[0]
                found.append(not_measured(f"{name}: everything", "ratio", reason))
    return found


def keep_pair(folder: Path | None, shape: str, loop: str, measured: Trace, foreseen: Trace) -> None:
    """Write a run by CUDA's events and the one that ``sim`` foresaw, and both in one picture."""
    if folder is None:
        return
    for name, trace in {"measured": measured, "foreseen": foreseen}.items():
        path = folder / f"{shape}-{loop}-{name}.json"
        write_whole(path, to_json(trace), with_folders=True)
    picture = to_svg(compare([measured, replace(foreseen, loop=f"{loop}: foreseen")]))
    write_whole(folder / f"{shape}-{loop}.svg", picture)


def sanitized(shape: str, loop: str, folder: Path, report: Report) -> Figure:
    """How many races torch's stream sanitizer reports of a short run."""
    name = f"{shape}: {loop} without graphs, reports of torch's stream sanitizer"
    report(name)
    command = [sys.executable, "-m", __name__, str(folder), loop]
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


def watched(folder: Path, loop: str, device: str = DEVICE) -> int:
    """A short run for the sanitizer to watch; how many tokens came.

    It sees kernels as they are launched, and nothing of what a graph replays: so this is the model
    without graphs, on the same streams, events and buffers.
    """
    from ..models.llama_graphs import LlamaGraphs

    load = GpuLoad(rows=4, prompt_len=64, new_tokens=16)
    config = replace(load.config(), cuda_graph_max_bs=0)
    model = LlamaGraphs(folder, "bfloat16", context_len=CONTEXT_LEN)
    run = run_to_end(loop, device, model, load.requests(), config)
    return sum(len(request.output_ids) for request in run.requests)


PART = BenchPart(cuda_rows, ("device", "model", "requests", "max_new_tokens"), ("cuda",))

if __name__ == "__main__":
    print(watched(Path(sys.argv[1]), sys.argv[2]))
