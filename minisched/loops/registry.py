"""Which loops there are, and what each needs from the scheduler, the relay and the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..core import NoBatch, ScheduleBatch
from ..devices.base import Device
from ..relay import FutureMapPool, FutureMapRing, HostTrip, LazyChain, Relay
from .mlx_async import mlx_async
from .overlap import overlap
from .serial import serial


@dataclass(frozen=True)
class LoopSpec:
    """A loop and the design it belongs to.

    ``depth`` is how many steps can be in flight. ``relays`` are those that fit, the default
    first. ``foresee_length`` says whether the original stops a request at its length before
    launching one step too many.
    """

    run: Callable[..., Iterator[ScheduleBatch | NoBatch]]
    depth: int
    foresee_length: bool
    relays: tuple[str, ...]


RELAYS: dict[str, Callable[[Device, int], Relay]] = {
    "host": lambda device, max_running_requests: HostTrip(),
    "ring": FutureMapRing,
    "pool": FutureMapPool,
    "chain": LazyChain,
}

LOOPS: dict[str, LoopSpec] = {
    "serial": LoopSpec(serial, depth=1, foresee_length=True, relays=("host",)),
    "overlap": LoopSpec(overlap, depth=2, foresee_length=False, relays=("ring", "pool")),
    "mlx_async": LoopSpec(mlx_async, depth=2, foresee_length=False, relays=("chain",)),
}


def find_loop(name: str) -> LoopSpec:
    """The loop of that name.

    Raises:
        ValueError: there is none.
    """
    if name not in LOOPS:
        raise ValueError(f"unknown loop {name!r}; the loops are {', '.join(LOOPS)}.")
    return LOOPS[name]
