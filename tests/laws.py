"""Runs one workload through one loop and checks every law that holds for all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from minisched.core import FinishReason, Output
from minisched.devices.base import Device
from minisched.devices.cost import NO_COST, CostModel
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine
from minisched.models.base import Model

from .oracle import grammar_of, hash_oracle
from .workloads import VOCAB, Workload

MAX_TURNS = 3000  # no workload here needs a tenth of it: more is a livelock

LoopOptions = tuple[str, str, dict[str, Any]]  # loop, relay, what the loop is called with

VARIANTS: list[LoopOptions] = [
    ("overlap", "ring", {"disable_consecutive_prefill_overlap": True}),
    ("overlap", "ring", {"delay_sample": True}),
    ("overlap_thread", "ring", {"delay_sample": True}),
    ("overlap_thread", "pool", {"wait_launch_done": False}),
    ("mlx_async", "chain", {"clear_cache_every": 3}),
    ("vllm_batch_queue", "host", {"depth": 4}),
    ("vllm_async", "pool", {"depth": 4}),
    ("mindie_placeholder", "fill_device", {"max_async_schedule_times": 2}),
    ("multi_step", "pool", {"num_steps": 3}),
]
ONE_ENGINE = [name for name in LOOPS if name not in ("pd", "mixed")]
"""Not ``pd``, whose two engines tests/test_pd.py drives; ``mixed`` needs chunks (test_laws.py)."""

LOOP_OPTIONS: list[LoopOptions] = [
    *((loop, relay, {}) for loop in ONE_ENGINE for relay in LOOPS[loop].relays),
    *VARIANTS,
]
"""Every loop with every relay that fits it, and with options that change its course."""

SOME_LOOP_OPTIONS = [item for item in LOOP_OPTIONS if item[:2] in {
    ("serial", "host"), ("overlap", "ring"), ("mlx_async", "chain"), ("overlap_thread", "ring"),
    ("mindie_plugin", "fill_host"), ("multi_step", "pool"),
}]  # fmt: skip
"""Loops that differ most in how they call the engine, for laws about everything around a loop."""


def runs_on(loop: str, device: str) -> bool:
    """Whether a loop runs on a device."""
    return device in LOOPS[loop].devices


class Livelock(AssertionError):
    """Turns go by and requests never end."""


class Broken(AssertionError):
    """A law does not hold; the message names it first."""


def play(
    workload: Workload,
    loop: str,
    relay: str,
    options: dict[str, Any],
    device: Device,
    model: Model,
    cost: CostModel = NO_COST,
    patch: Callable[[Engine], None] = lambda engine: None,
) -> tuple[Engine, list[Output]]:
    """Drive the loop turn by turn; requests and aborts come in on their turns."""
    outputs: list[Output] = []
    frontend = Frontend(on_output=outputs.append)
    engine = make_engine(loop, device, model, workload.config, frontend, cost, relay, **options)
    patch(engine)
    turns = LOOPS[loop].start(engine, **options)
    last = max([*workload.arrivals, *workload.aborts])
    try:
        for turn in range(MAX_TURNS):
            for req, arrival in zip(workload.requests, workload.arrivals, strict=True):
                if arrival == turn:
                    frontend.push(req)
            if turn in workload.aborts:
                frontend.abort(workload.aborts[turn])
            next(turns)
            if turn > last and engine.is_done:
                return engine, outputs
        raise Livelock("every request must end within a bounded number of turns")
    finally:
        device.close()


def check_identity(workload: Workload) -> None:
    """Law 1: the tokens of every request are those it would get alone."""
    for req in workload.requests:
        try:
            grammar = grammar_of(req, VOCAB, workload.eos_ids)
        except ValueError:  # it was refused
            truth = []
        else:
            truth = hash_oracle(
                list(req.prompt), req.params, req.sampling_key, VOCAB, workload.eos_ids, grammar,
                workload.config.late_penalties, workload.config.late_stop_strings,
            )  # fmt: skip
        if req.finish_reason is FinishReason.ABORT:
            truth = truth[: len(req.output_ids)]
        if req.output_ids != truth:
            raise Broken(f"identity: {req.rid} gave {req.output_ids}, alone it gives {truth}")


def check_ends(workload: Workload, outputs: list[Output]) -> None:
    """Law 2: every request ends exactly once, and its client heard exactly its tokens."""
    ends = Counter(output.rid for output in outputs if output.finish_reason)
    heard: dict[str, list[int]] = {req.rid: [] for req in workload.requests}
    for output in outputs:
        if output.token is not None:
            heard[output.rid].append(output.token)
    for req in workload.requests:
        if ends[req.rid] != 1 or req.finish_reason is None:
            raise Broken(f"ends: {req.rid} ended {ends[req.rid]} times")
        if heard[req.rid] != req.output_ids:
            raise Broken(f"ends: {req.rid} heard {heard[req.rid]}, produced {req.output_ids}")


def check_leaks(engine: Engine) -> None:
    """Law 2, at idle: every page is free or cached, each once; rows free, no lock, no lease."""
    scheduler = engine.scheduler
    pages, rows = list(scheduler.allocator.free_pages), scheduler.table.free_rows
    if scheduler.tree is not None:
        if scheduler.tree.protected_size:
            raise Broken(f"leak: {scheduler.tree.protected_size} pages are still locked")
        pages += scheduler.tree.evict(scheduler.tree.total_size)
    if sorted(pages) != list(range(1, scheduler.config.num_pages + 1)):
        raise Broken(f"leak: {len(pages)} of {scheduler.config.num_pages} pages are free")
    if sorted(rows) != list(range(1, scheduler.table.size + 1)):
        raise Broken(f"leak: {len(rows)} of {scheduler.table.size} rows are free")
    if scheduler.leases.returning or scheduler.decode.running_reqs or scheduler.prefill.chunked_req:
        raise Broken("leak: a lease or a request is still held")


def check_all(workload: Workload, engine: Engine, outputs: list[Output]) -> None:
    """All of the above."""
    check_identity(workload)
    check_ends(workload, outputs)
    check_leaks(engine)
