"""How a sampled token reaches the next step: over the host, or without it.

``base.py`` says what a relay does; ``RELAYS`` is all of them, by the names that loops list.
"""

from __future__ import annotations

from ..devices.base import Device
from .base import HostTrip, Relay, RelayShape
from .future_map import FutureMapRing
from .future_map_pool import FutureMapPool
from .lazy_chain import LazyChain
from .placeholder_fill import FillDevice, FillHost
from .prev_sampled import PrevSampled
from .token_pool import TokenPool

KINDS: tuple[type[Relay], ...] = (
    HostTrip,
    FutureMapRing,
    FutureMapPool,
    TokenPool,
    PrevSampled,
    LazyChain,
    FillHost,
    FillDevice,
)
RELAYS = {kind.name: kind for kind in KINDS}


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
    return RELAYS[name](device, shape)


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
