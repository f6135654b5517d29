"""One GPU: is it busy in steady decode, how near its limit is a step, and who is faster.

An op's slice starts when the GPU reaches it. If kernels are launched singly, the gaps between them
count as the op's. A graph has no gaps, so the busy time is measured on graphs.
"""

from __future__ import annotations

import gc
import json
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from ..checks.overlap import device_busy, forwards, step_intervals, within
from ..core import Request, SamplingParams
from ..devices.registry import open_device
from ..loops.run import run_to_end
from ..models.base import Model
from ..scheduler import SchedulerConfig
from ..trace import Trace
from .figures import (
    BenchCall,
    BenchPart,
    Figure,
    Measure,
    contest,
    not_measured,
    peer_asked,
    ratio,
)
from .tiny_llama import tensor_shapes

# -- Llamas of published shapes with random weights: what a step costs does not depend on them -----

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


def num_parameters(settings: dict[str, Any]) -> int:
    """Weights that every decode step reads: all but the embeddings, of which it reads rows."""
    sizes = {name: shape[0] * (*shape, 1)[1] for name, shape in tensor_shapes(settings)}
    return sum(size for name, size in sizes.items() if "embed_tokens" not in name)


def write_random_llama(directory: Path, settings: dict[str, Any]) -> None:
    """Write config.json and model.safetensors in bfloat16, drawn on the GPU.

    A norm is ones, a matrix [out, in] has the standard deviation 1 / sqrt(in).
    """
    import torch
    from safetensors.torch import save_file

    (directory / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    draw = torch.Generator(DEVICE).manual_seed(0)
    tensors = {}
    for name, shape in tensor_shapes(settings):
        tensor = torch.ones(shape, dtype=torch.bfloat16, device=DEVICE)
        if len(shape) > 1:
            tensor.normal_(0, shape[-1] ** -0.5, generator=draw)
        tensors[name] = tensor.cpu()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


# -- One shape on every loop, beside transformers --------------------------------------------------

LOOPS = ("overlap", "serial", "vllm_batch_queue")
BUSY_AIM = 98.0  # percent, with overlap
LIMIT_AIM = 2.0  # times the limit, at most
BYTES = 2  # of a weight and of a cached number: bfloat16
PAGE = 16  # tokens
CHUNK = 2048  # tokens of prompts in a step
CONTEXT_LEN = 1024  # tokens, of the models measured
ROWS, PROMPT_LEN, NEW_TOKENS = 32, 512, 128  # requests in a batch, and the tokens of each
FEWEST = 16  # new tokens: with less there is no steady decode
FEW = 2  # new tokens of the untimed run before each timed one
DEVICE = "cuda"
PEER = "transformers continuous"


def requests_of(rows: int, new_tokens: int) -> list[Request]:
    """Prompts that share nothing."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    return [
        Request(f"r{row}", [row + 1, *range(100, 99 + PROMPT_LEN)], params) for row in range(rows)
    ]


def bytes_per_step(settings: dict[str, Any], rows: int, new_tokens: int) -> float:
    """Return the fewest bytes that the median decode step reads: each weight and KV slot once."""
    width = settings["num_key_value_heads"] * settings["head_dim"]
    kv = 2 * settings["num_hidden_layers"] * width * BYTES
    return float(num_parameters(settings) * BYTES + kv * rows * (PROMPT_LEN + new_tokens / 2))


def shape_rows(
    shape: str, settings: dict[str, Any], folder: Path, model: Model, call: BenchCall
) -> list[Figure]:
    """Tokens a second beside transformers; then how busy the GPU is, and how near its limit.

    Weights, KV and graphs are made once, before the first timed run. Before each run of ours the
    allocator is emptied and the loop generates a few tokens, so that no arm pays for another.
    """
    rows, new_tokens = call.requests or ROWS, call.max_new_tokens or NEW_TOKENS
    traces: dict[str, list[Trace]] = {loop: [] for loop in LOOPS}
    question = {"prompts": [list(request.prompt) for request in requests_of(rows, new_tokens)],
                "new_tokens": new_tokens}  # fmt: skip
    config = SchedulerConfig(
        kv_tokens=rows * (-(-(PROMPT_LEN + new_tokens) // PAGE) + 2) * PAGE, page_size=PAGE,
        max_running_requests=rows, chunked_prefill_size=CHUNK, disable_radix_cache=True,
    )  # fmt: skip

    def answer(loop: str, tokens: int) -> Trace:
        """Run the requests on a loop; return the trace."""
        return run_to_end(loop, DEVICE, model, requests_of(rows, tokens), config).trace

    def ours(loop: str) -> float:
        """Measure a loop once, in decoded tokens a second."""
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        answer(loop, FEW)
        began = time.perf_counter()
        traces[loop].append(answer(loop, new_tokens))
        return rows * new_tokens / (time.perf_counter() - began)

    version = ""

    def theirs() -> float:
        """Measure the peer once, in decoded tokens a second."""
        nonlocal version
        ask({**question, "new_tokens": FEW})
        told = ask(question)
        version = str(told["version"])
        return rows * new_tokens / float(told["seconds"])

    for loop in LOOPS:  # kernels are chosen, graphs are captured
        call.report(f"warming up {loop}")
        answer(loop, new_tokens)
    told = {"device": DEVICE, "folder": str(folder), "dtype": "bfloat16", "threads": 1,
            "rival": PEER}  # fmt: skip
    with ExitStack() as stack:
        script = f"{__package__}.peers.transformers_generate"
        ask = peer_asked(script, told, call, stack, or_here=("torch", "transformers"))
        arms: dict[str, Measure] = {loop: partial(ours, loop) for loop in LOOPS}
        arms[PEER] = theirs
        found = contest(shape, arms, "tokens/s", {PEER: 1.0}, call, at_most=False)
    found = [
        replace(row, reason=f"transformers {version}")
        if row.name == f"{shape}: {PEER}" and row.values
        else row
        for row in found
    ]
    bandwidth = [bytes_per_second() for _ in range(call.repetitions)]
    limit_ms = [1e3 * bytes_per_step(settings, rows, new_tokens) / each for each in bandwidth]
    found.append(Figure(f"{shape}: a step's memory at the measured bandwidth", limit_ms, "ms"))
    for loop, kept in traces.items():
        steps = [steady_step_ms(trace) for trace in kept]
        busy = [steady_busy_percent(trace) for trace in kept]
        aim = BUSY_AIM if loop == "overlap" else None
        found += [
            Figure(f"{shape}: {loop}, GPU busy in steady decode", busy, "%", aim),
            Figure(f"{shape}: {loop}, a step in steady decode", steps, "ms"),
            ratio(f"{shape}: {loop}, a step / its limit", steps, limit_ms, LIMIT_AIM),
        ]
    return found


def bytes_per_second(size: int = 1 << 32) -> float:
    """Measure the bytes a second that a copy of ``size`` bytes in the GPU reads and writes."""
    import torch

    source = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    target.copy_(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    target.copy_(source)
    end.record()
    end.synchronize()
    return float(2 * size / start.elapsed_time(end) * 1e3)


SETTLED = 3  # steps at each end of a run that are left out


def steady_busy_percent(trace: Trace) -> float:
    """The share of the time between settled decode steps in which the device was busy."""
    decodes = [item for item in forwards(trace) if item.mode == "decode"][SETTLED:-SETTLED]
    start, end = decodes[0].start, decodes[-1].start
    return 100 * within(device_busy(trace), start, end) / (end - start)


def steady_step_ms(trace: Trace) -> float:
    """The median time from one settled step's forward pass to the next one's."""
    return median(step_intervals(trace)[SETTLED:-SETTLED]) / 1e6


# -- The whole measurement of one GPU --------------------------------------------------------------


def cuda_rows(call: BenchCall) -> list[Figure]:
    """One shape, which ``--model`` names, or all, with random weights in a folder meanwhile.

    With ``TMPDIR=/dev/shm`` they lie in memory.

    Raises:
        ValueError: there is no such shape, torch sees no GPU, or there are too few or too many
            tokens; nothing has run then.
    """
    if call.model is not None and call.model not in SHAPES:
        raise ValueError(f"--model is {call.model!r}; bench cuda knows {', '.join(SHAPES)}.")
    most = CONTEXT_LEN - PROMPT_LEN
    if call.max_new_tokens is not None and not FEWEST <= call.max_new_tokens <= most:
        raise ValueError(
            f"--max-new-tokens is {call.max_new_tokens}, but it must be between {FEWEST} and "
            f"{most}."
        )
    open_device(DEVICE).close()
    from ..models.llama_graphs import LlamaGraphs

    rows = []
    for name in [call.model] if call.model else SHAPES:
        settings = {**COMMON, **SHAPES[name]}
        with TemporaryDirectory() as text:
            folder = Path(text)
            try:
                call.report(f"drawing {name} weights")
                write_random_llama(folder, settings)
                model = LlamaGraphs(folder, "bfloat16", context_len=CONTEXT_LEN)
                rows += shape_rows(name, settings, folder, model, call)
            except RuntimeError as error:  # out of memory, for one: the other shape still counts
                reason = str(error).splitlines()[0]
                rows.append(not_measured(f"{name}: everything", "ratio", reason))
    return rows


PART = BenchPart(cuda_rows, ("device", "model", "requests", "max_new_tokens"), (DEVICE,))
