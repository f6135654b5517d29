"""Workloads on the clock: arrivals and aborts at times, and everything heard with its time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from minisched.checks.play import livelock, most_turns
from minisched.core import Output, Request
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.engine.frontend import Frontend
from minisched.loops.registry import LOOPS
from minisched.loops.run import make_engine
from minisched.trace import Trace

from .backends import hash_model
from .workloads import Workload, workloads

PHASES = ("receive", "schedule", "prepare", "launch", "process", "output")
COST = CostModel(dict.fromkeys(PHASES, 3), forward_base=10, forward_per_token=1, sample=2, copy=1)
"""No phase is free, so that no two of them end at one time."""


@dataclass
class TimedRun:
    """A run that is over."""

    engine: Engine
    device: SimDevice
    heard: list[tuple[int, Output]] = field(default_factory=list)  # in order of time

    @property
    def trace(self) -> Trace:
        """What the recorder kept."""
        return self.device.recorder.trace("", "sim", "hash", "virtual")


@st.composite
def timed_workloads(draw: st.DrawFn, **options: Any) -> Workload:
    """Like ``workloads``, with arrival times in nanoseconds; ``aborts`` are by time, not turn."""
    workload = draw(workloads(**options))
    for req in workload.requests:
        req.arrival_time = draw(st.integers(0, 400))
    times = st.integers(0, 600)
    rids = st.sampled_from([*(req.rid for req in workload.requests), "nobody"])
    if options.get("with_aborts", True):
        workload.aborts = draw(st.dictionaries(times, rids, max_size=4))
    return workload


def play_timed(
    workload: Workload,
    loop: str,
    relay: str,
    options: dict[str, Any],
    patch: Callable[[Engine], None] = lambda engine: None,
    is_streamed: bool = False,
) -> TimedRun:
    """Drive a loop on sim until nothing is left; the clock brings requests and aborts."""
    device = SimDevice()
    heard: list[tuple[int, Output]] = []
    requests: Any = workload.requests
    if is_streamed:
        requests = iter(sorted(requests, key=lambda req: req.arrival_time))
    frontend = Frontend(requests, lambda output: heard.append((device.now(), output)))
    for time, rid in workload.aborts.items():
        frontend.abort(rid, at=time)
    model = hash_model("sim", workload.eos_ids)
    engine = make_engine(loop, device, model, workload.config, frontend, COST, relay, **options)
    patch(engine)
    turns = LOOPS[loop].start(engine, **options)
    most = most_turns(workload, engine.worker.depth)
    for _ in range(most):
        if engine.is_done:
            return TimedRun(engine, device, heard)
        next(turns)
    raise livelock(workload, most)


def a_request(rid: str, arrival_time: int = 0) -> Request:
    """A short one."""
    return Request(rid, [1, 2, 3], arrival_time=arrival_time)
