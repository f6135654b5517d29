# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"
# ]
# ///
"""transformers' ``generate`` on a static batch: prompts padded on the left, all end together."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .peer import Answer, serve


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Load the model in ``folder`` in ``dtype``, for so many ``threads``."""
    torch: Any = import_module("torch")
    torch.set_num_threads(settings["threads"])
    auto: Any = import_module("transformers").AutoModelForCausalLM
    model = auto.from_pretrained(settings["folder"], dtype=getattr(torch, settings["dtype"]))
    model.generation_config.eos_token_id = None  # every request runs to its length

    def measure(question: Answer) -> Answer:
        """Generate; seconds in all, the time to the batch's first token, and the tokens."""
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
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
        tokens = out[:, longest:].tolist()
        return {"seconds": seconds, "ttft": first[0], "tokens": tokens}

    return measure


if __name__ == "__main__":
    serve(start)
