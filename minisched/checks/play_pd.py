"""Drives one workload through both sides of PD separation, whose clocks bring what comes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..core import Output
from ..devices.base import Device
from ..devices.cost import NO_COST, CostModel
from ..engine.engine import Engine
from ..engine.frontend import Frontend
from ..loops.pd import Pair
from ..loops.pd_run import make_pair
from ..models.base import Model
from .play import MAX_TURNS, Livelock
from .workload import Workload

SIDES = 20  # turns of either side for a turn of one engine: the side that is behind goes on alone


def play_pd(
    workload: Workload,
    relay: str,
    options: dict[str, Any],
    device: Device,
    model: Model,
    cost: CostModel = NO_COST,
    patch: Callable[[Engine], None] = lambda engine: None,
    each_turn: Callable[[Engine], None] = lambda engine: None,
) -> tuple[Pair, list[Output]]:
    """Turn the pair until nothing is left; a turn of the workload is as long as a short step.

    ``options`` are the link's. ``patch`` may change either engine before they start, and
    ``each_turn`` look at either after every turn. The device is closed at the end.

    Raises:
        Livelock: requests are left after ``SIDES * MAX_TURNS``.
    """
    outputs: list[Output] = []
    tick = step_ns(cost)
    for req, turn in zip(workload.requests, workload.arrivals, strict=True):
        req.arrival_time = turn * tick
    frontend = Frontend(workload.requests, outputs.append)
    for turn, rid in workload.aborts.items():
        frontend.abort(rid, at=turn * tick)
    requests, config = workload.requests, workload.config
    try:
        pair = make_pair(device, model, requests, config, frontend, cost, relay, **options)
        patch(pair.prefill)
        patch(pair.decode)
        for _ in range(SIDES * MAX_TURNS):
            if pair.is_done:
                return pair, outputs
            pair.turn()
            each_turn(pair.prefill)
            each_turn(pair.decode)
        raise Livelock("every request must end within a bounded number of turns")
    finally:
        device.close()


def step_ns(cost: CostModel) -> int:
    """Nanoseconds of a step with one token, where nothing overlaps; at least one."""
    return max(1, sum(cost.host.values()) + cost.forward(1) + cost.sample + cost.copy)
