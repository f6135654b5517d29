"""One GPU: is it busy in steady decode, how near its limit is a step, and who is faster.

An op's slice lasts from the moment the GPU reaches it. Launched kernel by kernel, the gaps between
kernels count as the op's; in a graph there are none. So busy is said of graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...checks.races import find_races
from ...core import Request, SamplingParams
from ...loops.run import Run, run_to_end
from ...models.base import Model
from ...scheduler import SchedulerConfig
from ..rows import Figure, figure, interleave, ratio
from ..steady import steady_busy_percent, steady_step_ms
from .foreseen import Keep, foreseen_figures, keep_nothing
from .random_llama import num_parameters

LOOPS = ("serial", "overlap", "vllm_batch_queue")
BUSY_AIM = 98.0  # percent, with overlap
BYTES = 2  # of a weight and of a cached number: bfloat16
PAGE = 16  # tokens
CHUNK = 2048  # tokens of prompts in a step
CONTEXT_LEN = 1024  # tokens, of the models measured
DEVICE = "cuda"
PEER = "transformers, continuous"


@dataclass(frozen=True)
class Load:
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


def cuda_figures(
    shape: str,
    settings: dict[str, Any],
    model: Model,
    peer: Callable[[Sequence[list[int]], int], None] | None,
    load: Load,
    repetitions: int,
    report: Callable[[str], None],
    keep: Keep = keep_nothing,
) -> list[Figure]:
    """One shape on every loop; ``peer`` generates so many tokens for each prompt, and waits."""
    runs: dict[str, list[Run]] = {loop: [] for loop in LOOPS}
    measures = {loop: partial(tokens_per_second, model, loop, load, runs[loop]) for loop in LOOPS}
    if peer:
        measures[PEER] = partial(peer_speed, peer, load)
    interleave(measures, 1, report)  # warm up: kernels are chosen, graphs are captured
    for kept in runs.values():
        kept.clear()
    speeds = interleave(measures, repetitions, report)
    bandwidth = [bytes_per_second() for _ in range(repetitions)]
    limit_ms = [1e3 * load.bytes_per_step(settings) / each for each in bandwidth]
    found = [figure(f"{shape}: {name}", taken, "tokens/s") for name, taken in speeds.items()]
    found.append(figure(f"{shape}: a step's memory at the measured bandwidth", limit_ms, "ms"))
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
    if peer:
        ours, theirs = speeds["overlap"], speeds[PEER]
        found.append(ratio(f"{shape}: transformers / overlap", theirs, ours, 1.0))
    config = load.config()
    return found + foreseen_figures(shape, DEVICE, model, runs, load.requests, config, report, keep)


def tokens_per_second(model: Model, loop: str, load: Load, kept: list[Run]) -> float:
    """One run, prompts included; it is kept."""
    start = time.perf_counter()
    run = run_to_end(loop, DEVICE, model, load.requests(), load.config())
    taken = time.perf_counter() - start
    kept.append(run)
    return load.rows * load.new_tokens / taken


def peer_speed(peer: Callable[[Sequence[list[int]], int], None], load: Load) -> float:
    """Tokens a second of the other engine."""
    prompts = [list(request.prompt) for request in load.requests()]
    start = time.perf_counter()
    peer(prompts, load.new_tokens)
    return load.rows * load.new_tokens / (time.perf_counter() - start)


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


def transformers_peer(folder: Path) -> Callable[[Sequence[list[int]], int], None]:
    """transformers' continuous batching of the same weights (``generate_batch``)."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to("cuda")

    def generate(prompts: Sequence[list[int]], new_tokens: int) -> None:
        config = GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        found = model.generate_batch(
            inputs=[*prompts], generation_config=config, progress_bar=False
        )
        torch.cuda.synchronize()
        made = sum(len(output.generated_tokens) for output in found.values())
        if made != len(prompts) * new_tokens:
            raise RuntimeError(f"transformers made {made} tokens, not {len(prompts) * new_tokens}")

    return generate
