"""Which workloads ``bench overlap`` measures, sized so that all of them take some minutes."""

from __future__ import annotations

import time
from pathlib import Path

from ...compare import run_to_end, warm_up
from ...core import Request, SamplingParams
from ...models.base import Model
from ...models.tiny import write_tiny_llama
from ...scheduler import SchedulerConfig
from ..steady import SETTLED
from .hidden import Case
from .shares import Cell

DEVICES = ("thread", "mlx", "cuda")
MODELS = ("small", "smollm2")
BATCHES = (1, 8, 32)
WORKS_MS = (0.0, 5.0, 20.0)
SMALL = {"vocab": 4096, "hidden": 256, "layers": 4, "heads": 4, "kv_heads": 2,
         "intermediate": 1024, "context": 256}  # fmt: skip
PROMPT_LEN = 8  # tokens; decode is what is measured
RUN_S = 0.5  # about how long a run's settled steps should take, within the limits below
FEWEST, MOST = 4, 40  # settled steps of a run
SLOW_S = 0.5  # beyond that, a step differs from the next one by more than any of these amounts


def write_small(folder: Path) -> Path:
    """A Llama whose step takes some milliseconds."""
    return write_tiny_llama(folder, **SMALL)


def make_case(device: str, model: Model, batch: int, new_tokens: int) -> Case:
    """``batch`` requests that come at once and run to their length together."""
    params = SamplingParams(max_new_tokens=new_tokens, ignore_eos=True)
    requests = [
        Request(f"r{at}", [1 + at, *range(2, PROMPT_LEN + 1)], params) for at in range(batch)
    ]
    longest = PROMPT_LEN + new_tokens
    config = SchedulerConfig(
        kv_tokens=batch * (longest + 1) + 1,
        max_running_requests=batch,
        context_len=longest,
        chunked_prefill_size=-1,
    )
    return Case(device, model, requests, config)


def make_cell(name: str, device: str, model: Model, batch: int, loop: str) -> Cell:
    """Measure how long a step takes; then choose how many to run, or say that it is too long."""
    probe = make_case(device, model, batch, FEWEST)
    warm_up(device, model, probe.config)
    start = time.perf_counter()
    run_to_end("serial", device, model, probe.requests, probe.config)
    step_s = (time.perf_counter() - start) / (FEWEST + 1)
    steps = max(FEWEST, min(MOST, round(RUN_S / step_s)))
    case = make_case(device, model, batch, steps + 2 * SETTLED + 1)
    if step_s <= SLOW_S:
        return Cell(name, case, loop, WORKS_MS)
    share = WORKS_MS[-1] / 1000 / step_s
    reason = f"a step takes {step_s:.1f} s, and {WORKS_MS[-1]:g} ms are {share:.1%} of it"
    return Cell(name, case, loop, (), reason)
