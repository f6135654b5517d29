"""How a sampled token reaches the next step: over the host, or without it.

``base.py`` explains the methods of a relay. ``RELAYS`` has all relays, by the names that loops use.
"""

from __future__ import annotations

from ..devices.base import Device
from .base import HostTrip, Relay, RelayShape
from .future_map import FutureMapRing
from .future_map_pool import FutureMapDrafts, FutureMapPool
from .lazy_chain import LazyChain
from .placeholder_fill import FillDevice, FillHost
from .prev_sampled import PrevSampled
from .request_state import RequestState
from .token_pool import TokenPool

KINDS: tuple[type[Relay], ...] = (
    HostTrip,
    FutureMapRing,
    FutureMapPool,
    TokenPool,
    PrevSampled,
    RequestState,
    LazyChain,
    FillHost,
    FillDevice,
)
RELAYS = {kind.name: kind for kind in KINDS}
CARRIERS: dict[str, type[Relay]] = {"host": HostTrip, "pool": FutureMapDrafts}
"""The relays that bring drafts and lengths from step to step, for an engine with drafts."""


def make_relay(
    loop: str,
    fitting: tuple[str, ...],
    name: str,
    device: Device,
    shape: RelayShape,
    takes: str = "",
) -> Relay:
    """Return the relay of that name, by default the first of ``fitting``, which fit the loop.

    Raises:
        ValueError: there is no such relay, or it does not fit; the message has the reason.
    """
    name = name or fitting[0]
    check_relay(loop, fitting, name, takes)
    kinds = CARRIERS if shape.num_draft_tokens else RELAYS
    return kinds[name](device, shape)


def check_relay(loop: str, fitting: tuple[str, ...], name: str, takes: str = "") -> None:
    """Check that a relay fits a loop; ``takes`` is the loop's own reason to refuse another one.

    Raises:
        ValueError: there is no such relay, or it does not fit; the message has the reason.
    """
    if name not in RELAYS:
        raise ValueError(f"unknown relay {name!r}; the relays are {', '.join(RELAYS)}.")
    if name not in fitting:
        reason = f"the loop wants {takes}" if takes else f"it needs {RELAYS[name].needs}"
        raise ValueError(
            f"relay {name!r} does not fit loop {loop!r}: {reason}; "
            f"this loop takes {', '.join(fitting)}."
        )
