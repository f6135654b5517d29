"""Host time of a step, as the batch, the queue, the tree and the history grow.

Python's garbage collector stays on while steps are timed, as it does in a server; it runs once
before, so that nobody pays for what the setting up has left.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..rows import Figure, Measure, SideBySide
from .engines import PAGE, Engine, Minisched, NanoVllmEngine, RunAhead, Workload
from .nano_vllm import NanoVllm
from .radix import radix_cases

PEER = "nano-vllm"
RUNNING = (1, 4, 16, 64, 256, 1024)
WAITING = (0, 1_000, 100_000)
TREES = (1_000, 1_000_000)  # tokens
FINISHED = 10_000  # requests
WARM_UP, STEPS, ADMITTING_STEPS = 8, 240, 8

DECODING = Workload()
# Rows are left, but the first that waits needs more pages than are free, and holds up the others.
POOL_FULL = Workload(head_len=150_000, spare_pages=64, spare_rows=64)
# Memory is left, but no row.
BATCH_FULL = Workload(spare_pages=64)
ADMITTING = Workload(
    running=0, waiting=1_000, prompt_len=512, head_len=512, spare_pages=4096, spare_rows=1024
)
AFTER_OTHERS = Workload(spare_pages=8192)

A_STEP = (  # what nano-vllm's does not do
    "each step makes a plan, a batch that stays as it was committed, and an output for each row, "
    "since loops run ahead of results and clients are told"
)
AN_ADMISSION = (
    "each admission looks for its prefix in a radix tree, locks what it found, counts down four "
    "budgets and shares the prompt once it is computed"
)


def scheduler_figures(
    nano: NanoVllm | None, reason: str, repetitions: int, report: Callable[[str], None]
) -> list[Figure]:
    """Steps and radix tree, each beside nano-vllm's; without it, ``reason`` says why not."""
    parts = step_cases(nano, reason), radix_cases(nano, reason)
    return [row for part in parts for row in part.figures(repetitions, report)]


def step_cases(nano: NanoVllm | None, reason: str) -> SideBySide:
    """What a step costs, and what it should not depend on."""
    loads = {running(size): replace(DECODING, running=size) for size in RUNNING}
    loads |= {waiting("pool", size): replace(POOL_FULL, waiting=size) for size in WAITING}
    admits = {admitting(size): replace(ADMITTING, waiting=size) for size in WAITING[1:]}
    both = {case: (step_us, load) for case, load in loads.items()}
    both |= {case: (admission_us, load) for case, load in admits.items()}
    ours: dict[str, Measure] = {
        case: partial(measure, Minisched, load) for case, (measure, load) in both.items()
    }
    theirs = {
        case: partial(measure, partial(NanoVllmEngine, nano), load) if nano else None
        for case, (measure, load) in both.items()
    }
    slower = {case: A_STEP for case in loads} | {case: AN_ADMISSION for case in admits}
    return SideBySide(PEER, {**ours, **own_cases()}, theirs, GROWTH, reason=reason, slower=slower)


def own_cases() -> dict[str, Measure]:
    """Steps that nano-vllm has no counterpart of, or whose setting up it is no part of."""
    loads = {waiting("batch", size): replace(BATCH_FULL, waiting=size) for size in WAITING}
    for size in TREES:
        pages = size // PAGE
        loads[tree(size)] = replace(AFTER_OTHERS, finished=pages, distinct=pages)
    for size in (0, FINISHED):
        loads[history(size)] = replace(AFTER_OTHERS, finished=size, distinct=16)
    cases: dict[str, Measure] = {
        case: partial(step_us, Minisched, load) for case, load in loads.items()
    }
    return {**cases, f"{running(256)}, one step ahead": partial(step_us, RunAhead, DECODING)}


def running(size: int) -> str:
    """The name of a case."""
    return f"step, {size:,} running"


def waiting(full: str, size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} waiting for a full {full}"


def admitting(size: int) -> str:
    """The name of a case."""
    return f"a request admitted, {size:,} waiting"


def tree(size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} tokens in the tree"


def history(size: int) -> str:
    """The name of a case."""
    return f"{running(256)}, {size:,} finished before"


GROWTH = (
    *(
        (waiting(full, size), waiting(full, 0))
        for full in ("pool", "batch")
        for size in WAITING[1:]
    ),
    (admitting(WAITING[2]), admitting(WAITING[1])),
    (tree(TREES[1]), tree(TREES[0])),
    (history(FINISHED), history(0)),
)  # what the first costs, in units of the second


def step_us(engine_of: Callable[[Workload], Engine], load: Workload) -> float:
    """Microseconds of a step in which those who run decode, and nobody else.

    Raises:
        RuntimeError: somebody else did, or not all of them.
    """
    return per_step(*timed(engine_of(load), WARM_UP, STEPS), load)


def per_step(taken: float, rows: int, load: Workload) -> float:
    """Microseconds of one of the steps timed.

    Raises:
        RuntimeError: others took part than those who run, or not all of them.
    """
    if rows != load.running * STEPS:
        raise RuntimeError(f"{rows / STEPS} requests ran in a step, not {load.running}")
    return taken / STEPS


def admission_us(engine_of: Callable[[Workload], Engine], load: Workload) -> float:
    """Microseconds of admitting one request and of taking its first token."""
    taken, admitted = timed(engine_of(load), 1, ADMITTING_STEPS)
    return taken / admitted


def timed(engine: Engine, warm_up: int, steps: int) -> tuple[float, int]:
    """Microseconds of so many steps, and the rows that they had together."""
    for _ in range(warm_up):
        engine.step()
    gc.collect()
    rows = 0
    start = time.perf_counter_ns()
    for _ in range(steps):
        rows += engine.step()
    return (time.perf_counter_ns() - start) / 1000, rows
