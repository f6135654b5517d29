"""mlx-lm's ``BatchGenerator``, greedy: its environment has mlx-lm and none of our packages."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .serve import Answer, serve


def start(settings: dict[str, Any]) -> Callable[[dict[str, Any]], Answer]:
    """Load the model in ``folder``."""
    load_model = import_module("mlx_lm.utils").load_model
    generator_of = import_module("mlx_lm.generate").BatchGenerator
    model = load_model(Path(settings["folder"]))[0]

    def measure(question: dict[str, Any]) -> Answer:
        """Generate; seconds in all, and the mean of the requests' times to their first token."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        first: dict[int, float] = {}
        begin = time.perf_counter()
        generator = generator_of(model)  # no stop tokens: each runs to its length
        generator.insert(prompts, [new_tokens] * len(prompts))
        tokens = 0
        while responses := generator.next_generated():
            now = time.perf_counter() - begin
            for response in responses:
                first.setdefault(response.uid, now)
            tokens += len(responses)
        seconds = time.perf_counter() - begin
        generator.close()
        if tokens != len(prompts) * new_tokens:
            raise RuntimeError(f"{tokens} tokens came, not {len(prompts) * new_tokens}")
        return {"seconds": seconds, "ttft": sum(first.values()) / len(first)}

    return measure


if __name__ == "__main__":
    serve(start)
