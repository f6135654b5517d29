"""Drives one workload through both sides of PD separation, whose clocks bring what comes."""

from __future__ import annotations

from ..core import Output
from ..devices.base import Device
from ..devices.cost import CostModel
from ..engine.frontend import Frontend
from ..loops.pd import Pair
from ..models.base import Model
from .case import Case
from .play import Hooks, livelock, most_turns

NO_HOOKS = Hooks()
SIDES = 4  # turns of either side for a turn of one engine: the side that is behind goes on alone


def play_pd(
    case: Case, device: Device, model: Model, hooks: Hooks = NO_HOOKS
) -> tuple[Pair, list[Output]]:
    """Turn the pair until nothing is left; a turn of the workload is as long as a short step.

    The case's options are the link's. The ``hooks`` are called with either engine. The device is
    closed at the end.

    Raises:
        Livelock: requests are left after ``SIDES * most_turns``.
    """
    workload, cost, outputs = case.workload, case.cost, list[Output]()
    requests, config = workload.requests, workload.config
    tick = step_ns(cost)
    for req, turn in zip(requests, workload.arrivals, strict=True):
        req.arrival_time = turn * tick
    frontend = Frontend(requests, outputs.append)
    for turn, rid in workload.aborts.items():
        frontend.abort(rid, at=turn * tick)
    try:
        pair = Pair(device, model, requests, config, frontend, cost, case.relay, **case.options)
        hooks.patch(pair.prefill)
        hooks.patch(pair.decode)
        most = SIDES * most_turns(workload, pair.decode.worker.depth)
        for turn in range(most):
            if turn in workload.flushes:
                frontend.flush_cache()
            if pair.is_done:
                return pair, outputs
            pair.turn()
            hooks.each_turn(pair.prefill)
            hooks.each_turn(pair.decode)
        raise livelock(workload, most)
    finally:
        device.close()


def step_ns(cost: CostModel) -> int:
    """Nanoseconds of a step with one token, where nothing overlaps; at least one."""
    return max(1, sum(cost.host.values()) + cost.forward(1) + cost.sample + cost.copy)
