"""This project's own generation, in a process of its own and with all its packages.

What it imports it imports on the first line that it reads: a peer's environment has none of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .serve import Answer


def generation(run: Callable[..., Any]) -> Callable[[dict[str, Any]], Answer]:
    """What answers a question; ``run`` takes requests, a config and ``on_output``."""
    core = import_module("minisched.core")
    config_of = import_module("minisched.scheduler").SchedulerConfig

    def measure(question: dict[str, Any]) -> Answer:
        """Generate; seconds in all, the mean of the times to a first token, and the tokens."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        first: dict[str, float] = {}
        params = core.SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
        requests = [core.Request(f"r{at}", prompt, params) for at, prompt in enumerate(prompts)]
        config = config_of(
            kv_tokens=sum(len(prompt) + new_tokens + 1 for prompt in prompts) + 1,
            max_running_requests=len(prompts),
            context_len=max(map(len, prompts)) + new_tokens,
            chunked_prefill_size=-1,
        )
        begin = time.perf_counter()
        done = run(
            requests, config,
            on_output=lambda out: first.setdefault(out.rid, time.perf_counter() - begin),
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        tokens = [done.outputs[request.rid] for request in requests]
        if sum(map(len, tokens)) != len(prompts) * new_tokens:
            raise RuntimeError(f"{sum(map(len, tokens))} tokens, not {len(prompts) * new_tokens}")
        return {"seconds": seconds, "ttft": sum(first.values()) / len(first), "tokens": tokens}

    return measure
