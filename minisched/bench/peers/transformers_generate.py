# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"
# ]
# ///
"""transformers' ``generate`` on a static batch, or ``generate_batch``, its continuous batching.

In a static batch prompts are padded on the left, and all end together. The continuous one has a
paged cache; starting it up is part of its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from .peer import Answer, serve

PAGE = 256  # tokens; its default
BATCH_TOKENS = 4096  # of one step; left to itself, it fills the machine's memory with its inputs


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Load the model in ``folder`` in ``dtype``, for so many ``threads``; ``rival`` says which."""
    torch: Any = import_module("torch")
    torch.set_num_threads(settings["threads"])
    auto: Any = import_module("transformers").AutoModelForCausalLM
    model = auto.from_pretrained(settings["folder"], dtype=getattr(torch, settings["dtype"]))
    is_static = settings["rival"] == "transformers static"
    return partial(in_one_batch if is_static else continuously, model)


def in_one_batch(model: Any, question: Answer) -> Answer:
    """Seconds in all, the time to the batch's first token, and the tokens."""
    torch: Any = import_module("torch")
    prompts, new_tokens = question["prompts"], question["new_tokens"]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    model.generation_config.eos_token_id = None  # every request runs to its length
    first: list[float] = []

    def note(seen: Any, scores: Any) -> Any:
        """Called with the logits of each step, just before its tokens are chosen."""
        if not first:
            first.append(time.perf_counter() - begin)
        return scores

    begin = time.perf_counter()
    out = model.generate(
        ids, attention_mask=mask, do_sample=False, pad_token_id=0,
        max_new_tokens=new_tokens, logits_processor=[note],
    )  # fmt: skip
    seconds = time.perf_counter() - begin
    if out.shape[1] != longest + new_tokens:
        raise RuntimeError(f"{out.shape[1] - longest} tokens came, not {new_tokens}")
    return {"seconds": seconds, "ttft": first[0], "tokens": out[:, longest:].tolist()}


def continuously(model: Any, question: Answer) -> Answer:
    """Seconds in all, the mean of the times to a first token, and the tokens."""
    config_of: Any = import_module("transformers").GenerationConfig
    continuous = import_module("transformers.generation").ContinuousBatchingConfig
    prompts, new_tokens = question["prompts"], question["new_tokens"]
    config = config_of(max_new_tokens=new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
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


if __name__ == "__main__":
    serve(start)
