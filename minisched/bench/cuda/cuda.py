"""One GPU: is it busy in steady decode, how near its limit is a step, and who is faster.

An op's slice lasts from the moment the GPU reaches it. Launched kernel by kernel, the gaps between
kernels count as the op's; in a graph there are none. So busy is said of graphs.

Two engines share the GPU, and what one of them leaves must not be the other's to pay for. What is
made once (weights, KV, a manager, graphs) is there before anything is timed, and stays. Before each
timed run, whoever's it is, the allocator is emptied and the same side says a few tokens.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from ...checks.races import find_races
from ...core import Request, SamplingParams
from ...loops.run import Run, run_to_end
from ...models.base import Model
from ...scheduler import SchedulerConfig
from ..rows import Figure, figure, interleave, not_measured, ratio
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


class Peer(Protocol):
    """Another engine on the same weights, which has made all that it needs."""

    def generate(self, prompts: Sequence[list[int]], new_tokens: int) -> None:
        """Say so many tokens for each prompt, and wait for the last of them."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


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


def cuda_figures(
    shape: str,
    settings: dict[str, Any],
    model: Model,
    make_peer: Callable[[], Peer],
    load: GpuLoad,
    repetitions: int,
    report: Callable[[str], None],
    keep: Keep = keep_nothing,
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
    speeds = interleave(measures, repetitions, report)
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


def peer_answer(peer: Peer, load: GpuLoad, new_tokens: int) -> None:
    """The same prompts, and as many tokens."""
    peer.generate([list(request.prompt) for request in load.requests()], new_tokens)


def warm_peer(make_peer: Callable[[], Peer], load: GpuLoad) -> tuple[Peer | None, str]:
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
