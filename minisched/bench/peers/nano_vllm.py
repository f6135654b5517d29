# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy==2.4.6", "xxhash==4.1.0"]
# ///
"""nano-vllm's scheduler, from a checkout, without the rest of it.

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

from ..steps import NEW_TOKENS, PAGE, PREFILL_TOKENS, HostWorkload, answer_with, result_of, settle
from .peer import Answer, serve


class NanoVllm:
    """Its classes."""

    def __init__(self, folder: str) -> None:
        package, config = ModuleType("nanovllm"), ModuleType("nanovllm.config")
        package.__path__ = [str(Path(folder, "nanovllm"))]
        config.Config = SimpleNamespace  # type: ignore[attr-defined]
        sys.modules.update({package.__name__: package, config.__name__: config})
        engine: Any = import_module("nanovllm.engine.scheduler")
        self.Scheduler = engine.Scheduler
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


def start(settings: Answer) -> Callable[[Answer], Answer]:
    """Import it from ``folder``."""
    return partial(answer_with, partial(NanoVllmEngine, NanoVllm(settings["folder"])))


if __name__ == "__main__":
    serve(start)
