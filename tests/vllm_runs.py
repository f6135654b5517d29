"""Runs for the laws of vLLM's loops: requests that never share a batch; how long steps take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from minisched.checks.overlap.overlap import step_intervals
from minisched.core import Request, SamplingParams
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine, run_loop
from minisched.models.hash import HashModel
from minisched.scheduler import SchedulerConfig
from minisched.trace import Trace

PROMPT = 3
SHARES = (("schedule", 4), ("prepare", 1), ("launch", 1), ("process", 3), ("output", 1))
ALONE = SchedulerConfig(chunked_prefill_size=PROMPT)
"""One prompt fills a step, so that requests which come together are in batches of their own."""


def cost_of(host: int, mask: int = 0, **device: int) -> CostModel:
    """A host that takes ``host`` nanoseconds a step (a multiple of 10), and the device's ops.

    ``mask`` comes on top, where there is one.
    """
    phases = {name: host * share // 10 for name, share in SHARES}
    assert sum(phases.values()) == host
    return CostModel({**phases, "mask": mask}, **device)


def some_alone(count: int, max_new_tokens: int = 48, **params: Any) -> list[Request]:
    """Requests of which each will be in batches of its own."""
    wanted = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True, **params)
    return [Request(f"r{i}", [i + 1] * PROMPT, wanted) for i in range(count)]


def run_alone(
    loop: str,
    count: int,
    cost: CostModel,
    relay: str = "",
    params: dict[str, Any] | None = None,
    **options: Any,
) -> Trace:
    """The trace of such requests on one loop; ``params`` are what they want."""
    requests = some_alone(count, **(params or {}))
    run = run_loop(loop, SimDevice(), HashModel(), requests, ALONE, cost, relay, **options)
    assert all(len(req.output_ids) == 48 for req in run.requests)
    return run.trace


def settled_sums(trace: Trace, period: int) -> set[int]:
    """What ``period`` steps in a row take, all along the settled part of a run."""
    intervals = step_intervals(trace)
    intervals = intervals[len(intervals) // 3 : 2 * len(intervals) // 3]
    assert len(intervals) > 2 * period
    return {sum(intervals[at : at + period]) for at in range(len(intervals) - period + 1)}


def drive_watching(
    loop: str,
    requests: list[Request],
    config: SchedulerConfig,
    cost: CostModel,
    watch: Callable[[Engine], None],
    relay: str = "",
    **options: Any,
) -> Engine:
    """Turn a loop until all is done, and look at the engine after every turn."""
    model = HashModel(19, eos_ids=frozenset())
    frontend = Frontend(requests)
    engine = make_engine(loop, SimDevice(), model, config, frontend, cost, relay, **options)
    turns = LOOPS[loop].start(engine, **options)
    while not engine.is_done:
        next(turns)
        watch(engine)
    return engine


def marks(device: SimDevice, name: str) -> Counter[str]:
    """How often each request got a mark of that name."""
    found = device.recorder.trace("", "", "", "virtual").marks
    return Counter(str(mark.attrs["rid"]) for mark in found if mark.name == name)
