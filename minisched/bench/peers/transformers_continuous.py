# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"
# ]
# ///
"""transformers' ``generate_batch``: continuous batching over a paged cache, start-up included."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .peer import Answer, serve

PAGE = 256  # tokens; its default
BATCH_TOKENS = 4096  # of one step; left to itself, it fills the machine's memory with its inputs


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Load the model in ``folder`` in ``dtype``, for so many ``threads``."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    continuous = import_module("transformers.generation").ContinuousBatchingConfig
    torch.set_num_threads(settings["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        settings["folder"], dtype=getattr(torch, settings["dtype"])
    )

    def measure(question: Answer) -> Answer:
        """Generate; seconds in all, the mean of the times to a first token, and the tokens."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        config = transformers.GenerationConfig(
            max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        pages = sum(-(-(len(prompt) + new_tokens) // PAGE) for prompt in prompts)
        room = continuous(page_size=PAGE, num_blocks=pages + 1, max_batch_tokens=BATCH_TOKENS)
        begin = time.perf_counter()
        answers = model.generate_batch(
            inputs=prompts, generation_config=config, continuous_batching_config=room,
            record_timestamps=True,
        )  # fmt: skip
        seconds = time.perf_counter() - begin
        outputs = list(answers.values())  # in the order of the prompts
        tokens = [list(output.generated_tokens) for output in outputs]
        if sum(map(len, tokens)) != len(prompts) * new_tokens:
            raise RuntimeError(f"{sum(map(len, tokens))} tokens, not {len(prompts) * new_tokens}")
        first = [output.timestamps[0] - begin for output in outputs]
        return {"seconds": seconds, "ttft": sum(first) / len(first), "tokens": tokens}

    return measure


if __name__ == "__main__":
    serve(start)
