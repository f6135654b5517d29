"""Which loops the laws are tested over; the laws themselves are ``minisched/checks/laws.py``."""

from __future__ import annotations

from typing import Any

from minisched.checks.laws import (
    Broken,
    check_all,
    check_ends,
    check_identity,
    check_leaks,
    check_races,
)
from minisched.checks.play import Livelock, play
from minisched.loops.registry import LOOPS

__all__ = [
    "Broken",
    "Livelock",
    "check_all",
    "check_ends",
    "check_identity",
    "check_leaks",
    "check_races",
    "play",
]

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
