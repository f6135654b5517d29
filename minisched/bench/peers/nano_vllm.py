# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy==2.4.6", "xxhash==4.1.0"]
# ///
"""nano-vllm's scheduler and block manager, from a checkout, without the rest of it.

https://github.com/GeeeekExplorer/nano-vllm, ``engine/``. Its package and its configuration import
torch and transformers, so both are stood in for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from ..steps import (
    NEW_TOKENS,
    OWN,
    PAGE,
    PREFILL_TOKENS,
    SHARED,
    HostWorkload,
    answer_with,
    cached_prompts,
    microseconds,
    new_prompts,
    prompts,
    result_of,
    settle,
)
from .peer import Answer, serve

SPARE_BLOCKS = 256


class NanoVllm:
    """Its classes."""

    def __init__(self, folder: str) -> None:
        package, config = ModuleType("nanovllm"), ModuleType("nanovllm.config")
        package.__path__ = [str(Path(folder, "nanovllm"))]
        config.Config = SimpleNamespace  # type: ignore[attr-defined]
        sys.modules.update({package.__name__: package, config.__name__: config})
        engine: Any = import_module("nanovllm.engine.scheduler")
        self.Scheduler, self.BlockManager = engine.Scheduler, engine.BlockManager
        self.Sequence = engine.Sequence
        self.SamplingParams = import_module("nanovllm.sampling_params").SamplingParams

    def sequence(self, prompt: list[int], max_tokens: int) -> Any:
        """A request that runs to its length."""
        return self.Sequence(prompt, self.SamplingParams(max_tokens=max_tokens, ignore_eos=True))


class NanoVllmEngine:
    """``schedule`` and ``postprocess`` in turn."""

    def __init__(self, nano: NanoVllm, load: HostWorkload) -> None:
        self.nano = nano
        self.scheduler = nano.Scheduler(
            SimpleNamespace(
                max_num_seqs=load.running + load.spare_rows, eos=-1,
                max_num_batched_tokens=PREFILL_TOKENS, kvcache_block_size=PAGE,
                num_kvcache_blocks=load.num_pages,
            )
        )  # fmt: skip
        settle(self.step, load, self.add)

    def add(self, tokens: list[int]) -> None:
        """Receive one request."""
        self.scheduler.add(self.nano.sequence(tokens, NEW_TOKENS))

    def step(self) -> int:
        """One turn of its engine."""
        seqs, is_prefill = self.scheduler.schedule()
        self.scheduler.postprocess(seqs, result_of(len(seqs)).tokens, is_prefill)
        return len(seqs)


def match_us(nano: NanoVllm, num_tokens: int, spread: bool) -> float:
    """Find the blocks of a cached prompt, take them and let them go.

    Its last block is never looked for, so each prompt gets one more token, and so a fifth block.
    """
    blocks = known_blocks(nano, num_tokens)

    def find(seq: Any) -> None:
        blocks.allocate(seq, blocks.can_allocate(seq))
        blocks.deallocate(seq)

    seqs = [nano.sequence([*tokens, 0], 1) for tokens in cached_prompts(num_tokens, spread)]
    return microseconds(find, seqs)


def insert_us(nano: NanoVllm, num_tokens: int) -> float:
    """Register the blocks of a prompt whose beginning is known."""
    blocks = known_blocks(nano, num_tokens)
    seqs = [nano.sequence(tokens, 1) for tokens in new_prompts()]
    for seq in seqs:
        hold(blocks, seq)
    return microseconds(blocks.hash_blocks, seqs)


def known_blocks(nano: NanoVllm, num_tokens: int) -> Any:
    """A block manager that knows about so many tokens, none of them in use."""
    known = prompts(num_tokens)
    blocks = nano.BlockManager(len(known) * (SHARED + OWN) // PAGE + SPARE_BLOCKS, PAGE)
    for tokens in known:
        seq = nano.sequence(tokens, 1)
        hold(blocks, seq)
        blocks.hash_blocks(seq)
        blocks.deallocate(seq)
    return blocks


def hold(blocks: Any, seq: Any) -> None:
    """Admit a whole prompt."""
    blocks.allocate(seq, blocks.can_allocate(seq))
    seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import it from ``folder``."""
    nano = NanoVllm(settings["folder"])

    def answer(question: Answer) -> Answer:
        """The time of a match, of an insertion, or of steps."""
        if "match" in question:
            return {"us": match_us(nano, question["match"], question["spread"])}
        if "insert" in question:
            return {"us": insert_us(nano, question["insert"])}
        return answer_with(partial(NanoVllmEngine, nano), question)

    return answer


if __name__ == "__main__":
    serve(start)
