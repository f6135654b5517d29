# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0"
# ]
# ///
"""transformers' ``generate`` on a static batch, or its continuous batching.

In a static batch prompts are padded on the left, and all end together. The continuous one has a
paged cache. Its ``generate_batch`` makes a manager, a cache and CUDA graphs at each call; here all
of that is made once for a load, by the first question that asks for it.
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
SHARE = 0.4  # of the memory that is free when its cache is made: it takes no more


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Load the model in ``folder`` in ``dtype``, with torch's ``threads``, for one ``rival``."""
    torch: Any = import_module("torch")
    torch.set_num_threads(settings["threads"])
    auto: Any = import_module("transformers").AutoModelForCausalLM
    model = auto.from_pretrained(settings["folder"], dtype=getattr(torch, settings["dtype"]))
    model = model.to("cuda" if settings["device"] == "cuda" else "cpu")
    if settings["rival"] == "transformers static":
        return partial(in_one_batch, model)
    return ContinuousBatching(model).answer


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

    begin, cpu = time.perf_counter(), time.process_time()
    out = model.generate(
        ids, attention_mask=mask, do_sample=False, pad_token_id=0,
        max_new_tokens=new_tokens, logits_processor=[note],
    )  # fmt: skip
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    if out.shape[1] != longest + new_tokens:
        raise RuntimeError(f"{out.shape[1] - longest} tokens came, not {new_tokens}")
    return {"seconds": seconds, "cpu": cpu, "ttft": first[0], "tokens": out[:, longest:].tolist()}


class ContinuousBatching:
    """A ``ContinuousBatchingManager`` with room for the largest load that it was asked for.

    It shares no prefixes, as ours does not where every run has the same prompts.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.room = (0, 0)  # requests, and pages of each
        self.manager: Any = None

    def make_room(self, rows: int, pages: int) -> None:
        """Make twice the room needed: with a fifth of the cache free, it admits no request."""
        if rows <= self.room[0] and pages <= self.room[1]:
            return
        if self.manager:
            self.manager.stop(block=True)
        self.room = (rows, pages)
        configs = import_module("transformers.generation")
        page = page_size_name(configs.ContinuousBatchingConfig)
        config_of = import_module("transformers").GenerationConfig
        self.manager = self.model.init_continuous_batching(
            generation_config=config_of(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=configs.ContinuousBatchingConfig(
                **{page: PAGE}, num_blocks=2 * rows * pages, max_requests_per_batch=rows,
                max_blocks_per_request=pages + pages % 2, max_batch_tokens=BATCH_TOKENS,
                max_memory_percent=SHARE, allow_block_sharing=False,
            ),
        )  # fmt: skip
        if self.model.device.type == "cuda":
            self.manager.warmup()  # captures graphs
        self.manager.start()

    def answer(self, question: Answer) -> Answer:
        """Seconds in all, the mean of the times to a first token, and the tokens.

        Raises:
            RuntimeError: it generated fewer tokens, or its thread has ended.
        """
        prompts, new_tokens = question["prompts"], question["new_tokens"]
        self.make_room(len(prompts), -(-(max(map(len, prompts)) + new_tokens) // PAGE) + 1)
        begin, cpu = time.perf_counter(), time.process_time()
        ids = [
            self.manager.add_request(
                prompt, max_new_tokens=new_tokens, record_timestamps=True, streaming=False
            )
            for prompt in prompts
        ]
        outputs: dict[str, Any] = {}
        while len(outputs) < len(prompts):
            output = self.manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                outputs[output.request_id] = output
            elif output is None and not self.manager.is_running():
                raise RuntimeError("the manager's thread has ended")
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
        tokens = [list(outputs[name].generated_tokens) for name in ids]
        if sum(map(len, tokens)) != len(prompts) * new_tokens:
            raise RuntimeError(f"{sum(map(len, tokens))} tokens, not {len(prompts) * new_tokens}")
        first = [outputs[name].timestamps[0] - begin for name in ids]
        ttft = sum(first) / len(first)
        version = import_module("transformers").__version__
        return {
            "seconds": seconds, "cpu": cpu, "ttft": ttft, "tokens": tokens, "version": version
        }  # fmt: skip


def page_size_name(config: Any) -> str:
    """Return the name of the page size in a config: ``block_size`` in transformers 5.17."""
    return "page_size" if "page_size" in config.__dataclass_fields__ else "block_size"


if __name__ == "__main__":
    serve(start)
