"""This project's own generation, on torch or on MLX, in a process of its own as its rivals are."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from ...core import Request, SamplingParams
from ...loops.run import run_loop, run_to_end
from ...models.registry import open_model
from ...policy.rules import SPARED
from ...scheduler import SchedulerConfig
from .peer import Answer, serve

ADAPTER = "minisched, transformers' layers"


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Load the model in ``folder``; on ``thread`` in ``dtype`` and with torch's ``threads``.

    The arm ``ADAPTER`` computes a Llama by transformers' own layers. The loop on ``thread`` is
    ``serial``: the host has nothing to do, so torch gets every core.
    """
    model: Any
    run: Callable[..., Any]
    if settings["device"] == "mlx":
        model = open_model(settings["folder"], "mlx", settings["dtype"])
        run = partial(run_to_end, "mlx_async", "mlx", model)
    else:
        from ...devices.thread import ThreadDevice
        from ...models.llama_torch import LlamaTorch
        from ...models.transformers_lm import TransformersLM

        folder, dtype = settings["folder"], settings["dtype"]
        by_adapter = settings.get("rival") == ADAPTER
        model = (
            TransformersLM.from_directory(folder, dtype)
            if by_adapter
            else LlamaTorch(folder, dtype)
        )

        def run(*load: Any, **options: Any) -> Any:
            """On a device of its own each time: a run closes it."""
            device = ThreadDevice(torch_threads=settings["threads"])
            return run_loop("serial", device, model, *load, **options)

    return partial(generate, run)


def generate(run: Callable[..., Any], question: Answer) -> Answer:
    """Seconds in all, by the clock and of CPU; the mean time to a first token; and the tokens."""
    prompts, new_tokens = question["prompts"], question["new_tokens"]
    first: dict[str, float] = {}
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    requests = [Request(f"r{at}", prompt, params) for at, prompt in enumerate(prompts)]
    config = SchedulerConfig(
        kv_tokens=sum(len(prompt) + new_tokens + SPARED + 1 for prompt in prompts),
        max_running_requests=len(prompts),
        context_len=max(map(len, prompts)) + new_tokens + SPARED,
        chunked_prefill_size=-1,
    )
    begin, cpu = time.perf_counter(), time.process_time()
    done = run(
        requests, config,
        on_output=lambda out: first.setdefault(out.rid, time.perf_counter() - begin),
    )  # fmt: skip
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    tokens = [done.outputs[request.rid] for request in requests]
    if sum(map(len, tokens)) != len(prompts) * new_tokens:
        raise RuntimeError(f"{sum(map(len, tokens))} tokens, not {len(prompts) * new_tokens}")
    ttft = sum(first.values()) / len(first)
    return {"seconds": seconds, "cpu": cpu, "ttft": ttft, "tokens": tokens}


if __name__ == "__main__":
    serve(start)
