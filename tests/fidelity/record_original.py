"""Run an original whose source has a recipe's patch, and save what it recorded.

``record_original.py NAME SOURCE LOOP FILE``, in the environment of the original (``peer.py``).
A thread is the GPU: it takes ``FORWARD_S`` for each batch.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from minisched.fidelity import mini_sglang, nano_vllm
from minisched.fidelity.case import Arrival, FidelityCase
from minisched.scheduler import SchedulerConfig

FORWARD_S = 0.01
NEW_TOKENS = 12


def case_of(loop: str) -> FidelityCase:
    """Four requests that arrive together, with room for all of them."""
    config = SchedulerConfig(
        page_size=16, kv_tokens=1024, max_running_requests=8, max_prefill_tokens=1024
    )
    arrivals = tuple(
        Arrival(
            f"r{at}", 0, tuple(range(20 * at + 1, 20 * at + 25)),
            tuple(100 * (at + 1) + step for step in range(NEW_TOKENS)), NEW_TOKENS, True,
        )
        for at in range(4)
    )  # fmt: skip
    return FidelityCase(loop, config, arrivals)


def record_nano_vllm(loop: str, file: str) -> None:
    """Its model runner is the case's, and takes time."""
    made = nano_vllm.set_up()

    class Slow(made):  # type: ignore[misc, valid-type]
        """The engine of one case."""

        def call(self, method: str, seqs: list[Any], is_prefill: bool) -> list[int]:
            time.sleep(FORWARD_S)
            tokens: list[int] = super().call(method, seqs, is_prefill)
            return tokens

    driven = Slow(case_of(loop))
    driven.turn = 0  # as in its __init__, which is not called
    driven.turns.play(driven.loop)
    import_module("nanovllm.engine.llm_engine").rec.save(file, "nano-vllm", "cuda", "case")


def record_mini_sglang(loop: str, file: str) -> None:
    """Its engine's stream is a thread."""
    made = mini_sglang.set_up()
    rec = import_module(mini_sglang.SCHEDULER).rec
    stream = ThreadPoolExecutor(1)

    def run(op: int) -> None:
        with rec.run(op):
            time.sleep(FORWARD_S)

    class Slow(made):  # type: ignore[misc, valid-type]
        """The scheduler of one case."""

        def forward(self, batch: Any, sample_args: None) -> Any:
            on_device, on_host, _ = super().forward(batch, sample_args)
            done = SimpleNamespace(synchronize=stream.submit(run, batch.op).result)
            return mini_sglang.ForwardOutput((on_device, on_host, done))

    driven = Slow(case_of(loop))
    driven.turn = 0  # as in its __init__, which is not called
    driven.turns.play(driven.loop)
    stream.shutdown()
    rec.save(file, "mini-sglang", "cuda", "case")


if __name__ == "__main__":
    name, source, loop, file = sys.argv[1:]
    original = {"nano-vllm": nano_vllm, "mini-sglang": mini_sglang}[name].ORIGINAL
    sys.path.insert(0, str(Path(source, original.below)))
    {"nano-vllm": record_nano_vllm, "mini-sglang": record_mini_sglang}[name](loop, file)
