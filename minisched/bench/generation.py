"""Tokens a second against the libraries' own batched generation: same prompts, same weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..compare import fresh, run_to_end, warm_up
from ..devices.registry import load
from .hidden import Case
from .rows import Figure, figure, interleave


def generation(
    case: Case,
    loops: Sequence[str],
    folder: Path,
    repetitions: int,
    report: Callable[[str], None] = lambda doing: None,
) -> list[Figure]:
    """Tokens a second, prompts included, of each loop and of the device's own library."""
    warm_up(case.device, case.model, case.config)
    prompts = [list(request.prompt) for request in case.requests]
    new_tokens = case.requests[0].params.max_new_tokens
    peer = mlx_lm(folder, prompts, new_tokens) if case.device == "mlx" else transformers(
        folder, prompts, new_tokens
    )  # fmt: skip
    measures: dict[str, Callable[[], float]] = {
        f"minisched {loop}": partial(speed, case, loop) for loop in loops
    }
    measures["mlx-lm" if case.device == "mlx" else "transformers"] = peer
    values = interleave(measures, repetitions, report)
    return [figure(name, taken, "tokens/s") for name, taken in values.items()]


def speed(case: Case, loop: str) -> float:
    """Tokens a second of one loop."""
    requests = [fresh(request) for request in case.requests]
    start = time.perf_counter()
    run = run_to_end(loop, case.device, case.model, requests, case.config)
    return sum(map(len, run.outputs.values())) / (time.perf_counter() - start)


def transformers(folder: Path, prompts: list[list[int]], new_tokens: int) -> Callable[[], float]:
    """``generate`` on a left-padded static batch, greedy, fp32."""
    auto: Any = load("transformers", "AutoModelForCausalLM", "dev", "bench generation")
    import torch

    model = auto.from_pretrained(folder, dtype=torch.float32)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])

    def measure() -> float:
        """Tokens a second."""
        start = time.perf_counter()
        model.generate(
            ids, attention_mask=mask, do_sample=False, pad_token_id=0,
            min_new_tokens=new_tokens, max_new_tokens=new_tokens,
        )  # fmt: skip
        return len(prompts) * new_tokens / (time.perf_counter() - start)

    return measure


def mlx_lm(folder: Path, prompts: list[list[int]], new_tokens: int) -> Callable[[], float]:
    """mlx-lm's batched generation, greedy."""
    batch_generate: Any = load("mlx_lm", "batch_generate", "mlx", "bench generation")
    model, tokenizer = load("mlx_lm", "load", "mlx", "bench generation")(str(folder))[:2]
    tokenizer.eos_token_ids = set()  # every request runs to its length, as in the other engines

    def measure() -> float:
        """Tokens a second."""
        start = time.perf_counter()
        batch_generate(model, tokenizer, prompts, max_tokens=new_tokens)
        return len(prompts) * new_tokens / (time.perf_counter() - start)

    return measure
