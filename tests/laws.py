"""Which loops the laws are tested over; the laws themselves are ``minisched/checks/laws.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minisched.checks import play as checks_play
from minisched.checks.clients import Clients
from minisched.checks.laws import (
    Broken,
    check_aborts,
    check_clients,
    check_ends,
    check_identity,
    check_leaks,
    check_races,
)
from minisched.checks.play import Livelock
from minisched.checks.workload import Workload
from minisched.core import Output
from minisched.devices.base import Device
from minisched.devices.cost import NO_COST, CostModel
from minisched.engine.engine import Engine
from minisched.loops.registry import LOOPS
from minisched.models.base import Model

__all__ = [
    "Broken",
    "Livelock",
    "check_aborts",
    "check_all",
    "check_clients",
    "check_ends",
    "check_identity",
    "check_leaks",
    "check_races",
    "play",
]


class Heard(list[Output]):
    """What clients heard in a run, and what they said."""

    clients: Clients


def play(
    workload: Workload,
    loop: str,
    relay: str,
    options: dict[str, Any],
    device: Device,
    model: Model,
    cost: CostModel = NO_COST,
    patch: Callable[[Engine], None] = lambda engine: None,
    each_turn: Callable[[Engine], None] = lambda engine: None,
) -> tuple[Engine, Heard]:
    """``minisched/checks/play.py:play``, with somebody who listens to the clients."""
    clients = Clients(workload)

    def patched(engine: Engine) -> None:
        clients.watch(engine)
        patch(engine)

    def look(engine: Engine) -> None:
        each_turn(engine)
        clients.look(engine)

    engine, outputs = checks_play.play(
        workload, loop, relay, options, device, model, cost, patched, look
    )
    heard = Heard(outputs)
    heard.clients = clients
    return engine, heard


def check_all(workload: Workload, engine: Engine, outputs: Sequence[Output]) -> None:
    """The laws on tokens, ends and memory; and on clients, where somebody listened to them."""
    check_identity(workload)
    check_ends(workload, outputs)
    check_leaks(engine)
    if isinstance(outputs, Heard):
        check_clients(outputs.clients, engine, outputs)
        check_aborts(outputs.clients, outputs)


LoopOptions = tuple[str, str, dict[str, Any]]  # loop, relay, what the loop is called with

VARIANTS: list[LoopOptions] = [
    ("overlap", "ring", {"disable_consecutive_prefill_overlap": True}),
    ("overlap", "ring", {"delay_sample": True}),
    ("overlap_thread", "ring", {"delay_sample": True}),
    ("overlap_thread", "pool", {"wait_launch_done": False}),
    ("mlx_async", "chain", {"clear_cache_every": 3}),
    ("vllm_batch_queue", "host", {"depth": 4}),
    ("vllm_async", "pool", {"depth": 4}),
    ("vllm_batch_queue", "host", {"depth": 4, "harvest_when_done": True}),
    ("vllm_async", "pool", {"depth": 4, "harvest_when_done": True}),
    ("vllm_pp4", "host", {"harvest_when_done": True}),
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
