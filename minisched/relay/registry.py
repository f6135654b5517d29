"""Which relays there are, by name, and what each needs of a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..devices.base import Device
from .base import HostTrip, Relay
from .future_map import FutureMapRing
from .future_map_pool import FutureMapPool
from .lazy_chain import LazyChain
from .placeholder_fill import FillDevice, FillHost
from .prev_sampled import PrevSampled
from .token_pool import TokenPool


class RelayShape(NamedTuple):
    """What a relay has room for: rows of the request table (from 1), positions in each."""

    max_running_requests: int
    max_len: int
    num_draft_tokens: int = 0  # that a row may carry


class RelaySpec(NamedTuple):
    """How a relay is made, and ``needs``: what a loop must do so that it fits."""

    make: Callable[[Device, RelayShape], Relay]
    needs: str


RELAYS: dict[str, RelaySpec] = {
    "host": RelaySpec(
        lambda device, shape: HostTrip(),
        "a loop that launches a step only when the host has every token of it",
    ),
    "ring": RelaySpec(
        lambda device, shape: FutureMapRing(device, shape.max_running_requests),
        "a loop that runs ahead and reads a token within three steps (a fourth may lap the ring)",
    ),
    "pool": RelaySpec(
        lambda device, shape: FutureMapPool(
            device, shape.max_running_requests, shape.num_draft_tokens
        ),
        "a loop that runs ahead",
    ),
    "token_pool": RelaySpec(
        lambda device, shape: TokenPool(device, shape.max_running_requests, shape.max_len),
        "a loop that runs ahead, or mini-sglang's own, with whole steps on one stream that waits "
        "for the copies of prompts",
    ),
    "prev_sampled": RelaySpec(
        lambda device, shape: PrevSampled(device, shape.max_running_requests, shape.max_len),
        "a loop that runs ahead, in which the very next step reads a token that nobody knows "
        "(it holds the last step's tokens only)",
    ),
    "chain": RelaySpec(
        lambda device, shape: LazyChain(device),
        "a loop that runs ahead and tells the relay which step each one is built on",
    ),
    "fill_host": RelaySpec(
        lambda device, shape: FillHost(device, shape.max_running_requests),
        "a loop that lays a step out before it waits for the tokens, and then writes them in",
    ),
    "fill_device": RelaySpec(
        lambda device, shape: FillDevice(device, shape.max_running_requests),
        "a loop that runs ahead, in which the very next step reads a token that nobody knows "
        "(only the last step's rows fill)",
    ),
}


def make_relay(
    loop: str,
    fitting: tuple[str, ...],
    name: str,
    device: Device,
    shape: RelayShape,
    takes: str = "",
) -> Relay:
    """The relay of that name (by default the first of those that fit the loop).

    Raises:
        ValueError: it does not fit, or there is none of that name; the sentence says why.
    """
    name = name or fitting[0]
    check_relay(loop, fitting, name, takes)
    return RELAYS[name].make(device, shape)


def check_relay(loop: str, fitting: tuple[str, ...], name: str, takes: str = "") -> None:
    """Whether a relay fits a loop.

    ``takes`` is what the loop wants of a relay, where the reason is the loop's own; otherwise the
    reason is what the relay needs.

    Raises:
        ValueError: it does not, or there is none of that name; the sentence says why.
    """
    if name not in RELAYS:
        raise ValueError(f"unknown relay {name!r}; the relays are {', '.join(RELAYS)}.")
    if name not in fitting:
        reason = f"the loop wants {takes}" if takes else f"it needs {RELAYS[name].needs}"
        raise ValueError(
            f"relay {name!r} does not fit loop {loop!r}: {reason}; "
            f"this loop takes {', '.join(fitting)}."
        )
