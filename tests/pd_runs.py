"""Both sides of PD separation, driven turn by turn over workloads on the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from minisched.checks.play import livelock, most_turns
from minisched.checks.play_pd import SIDES
from minisched.core import Output
from minisched.devices.cost import CostModel
from minisched.devices.sim import SimDevice
from minisched.engine.frontend import Frontend
from minisched.loops.pd import Pair
from minisched.loops.pd_run import make_pair
from minisched.trace import Trace
from tests.support import COST, Workload, check_all, check_leaks, hash_model, timed_workloads

LINK = {"latency": 5, "bytes_per_second": 10**9, "slot_bytes": 2}
timed = timed_workloads()

links = st.fixed_dictionaries({
    "latency": st.sampled_from([0, 1, 20, 300]),
    "bytes_per_second": st.just(10**9),
    "slot_bytes": st.sampled_from([0, 1, 15]),
    "prealloc_first": st.booleans(),
})  # fmt: skip
"""From a network that costs nothing to one that is slower than everything else."""


@dataclass
class PdRun:
    """A run that is over."""

    pair: Pair
    device: SimDevice
    heard: list[tuple[int, Output]] = field(default_factory=list)  # in order of time

    @property
    def trace(self) -> Trace:
        """What both sides recorded."""
        return self.device.recorder.trace("pd", "sim", "hash", "virtual")

    @property
    def outputs(self) -> list[Output]:
        """Everything that clients heard."""
        return [output for _, output in self.heard]


def play_pd(
    workload: Workload,
    options: dict[str, Any],
    patch: Callable[[Pair], None] = lambda pair: None,
    relay: str = "",
    cost: CostModel = COST,
) -> PdRun:
    """Turn both sides until nothing is left; the clock brings requests and aborts."""
    device = SimDevice()
    heard: list[tuple[int, Output]] = []
    frontend = Frontend(workload.requests, lambda output: heard.append((device.now(), output)))
    for time, rid in workload.aborts.items():
        frontend.abort(rid, at=time)
    model = hash_model("sim", workload.eos_ids)
    requests, config = workload.requests, workload.config
    pair = make_pair(device, model, requests, config, frontend, cost, relay, **options)
    patch(pair)
    most = SIDES * most_turns(workload, pair.decode.worker.depth)
    for _ in range(most):
        if pair.is_done:
            return PdRun(pair, device, heard)
        pair.turn()
    raise livelock(workload, most)


def check_pd(workload: Workload, run: PdRun) -> None:
    """Every law, on both sides."""
    check_all(workload, run.pair.decode, run.outputs)
    check_leaks(run.pair.prefill)
    for side in (run.pair.prefill, run.pair.decode):
        assert side.sim.is_idle
