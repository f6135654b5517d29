"""transformers' ``generate_batch``: continuous batching over a paged cache, start-up included."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .serve import Answer, serve

PAGE = 256  # tokens; its default
BATCH_TOKENS = 4096  # of one step; left to itself, it fills the machine's memory with its inputs


def start(settings: dict[str, Any]) -> Callable[[dict[str, Any]], Answer]:
    """Load the model in ``folder`` in ``dtype``."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    continuous = import_module("transformers.generation").ContinuousBatchingConfig
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings["folder"], dtype=getattr(torch, settings["dtype"])
    )

    def generate(prompts: list[list[int]], new_tokens: int) -> float:
        """Seconds of one call."""
        config = transformers.GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        pages = sum(-(-(len(prompt) + new_tokens) // PAGE) for prompt in prompts)
        room = continuous(page_size=PAGE, num_blocks=pages + 1, max_batch_tokens=BATCH_TOKENS)
        begin = time.perf_counter()
        outputs = model.generate_batch(
            inputs=prompts, generation_config=config, continuous_batching_config=room
        )
        seconds = time.perf_counter() - begin
        tokens = sum(len(out.generated_tokens) for out in outputs.values())
        if tokens != len(prompts) * new_tokens:
            raise RuntimeError(f"{tokens} tokens came, not {len(prompts) * new_tokens}")
        return seconds

    def measure(question: dict[str, Any]) -> Answer:
        """Seconds in all; TTFT is a call for one token, as outputs come when all have ended."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        return {"ttft": generate(prompts, 1), "seconds": generate(prompts, new_tokens)}

    return measure


if __name__ == "__main__":
    serve(start)
