"""Which loops there are, by name."""

from __future__ import annotations

from dataclasses import replace

from ..relay.registry import check_relay
from .mlx_async import mlx_async
from .overlap import overlap
from .serial import serial
from .spec import LoopSpec

LOOPS: dict[str, LoopSpec] = {
    "serial": LoopSpec(
        serial, depth=1, relays=("host",),
        source="SGLang managers/scheduler.py:event_loop_normal",
    ),
    "overlap": LoopSpec(
        overlap, depth=2, overrun=1, relays=("ring", "pool"),
        source="SGLang managers/scheduler.py:event_loop_overlap",
    ),
    "mlx_async": LoopSpec(
        mlx_async, depth=2, overrun=1, relays=("chain",),
        source="SGLang hardware_backend/mlx/scheduler_mixin.py:event_loop_overlap_mlx",
    ),
}  # fmt: skip


def find_loop(name: str) -> LoopSpec:
    """The loop of that name; ``overlap:pool`` is the loop ``overlap`` with the relay ``pool``.

    Raises:
        ValueError: there is none, or the relay does not fit it.
    """
    loop, colon, relay = name.partition(":")
    if loop not in LOOPS:
        raise ValueError(f"unknown loop {loop!r}; the loops are {', '.join(LOOPS)}.")
    spec = LOOPS[loop]
    if colon:
        check_relay(loop, spec.relays, relay)
        spec = replace(spec, relays=(relay,))
    return spec
