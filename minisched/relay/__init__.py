"""How a sampled token reaches the next step: over the host, or without it."""

from .base import Relay, UploadRelay
from .future_map import FutureMapRing
from .future_map_pool import FutureMapPool
from .host_trip import HostTrip
from .lazy_chain import LazyChain
from .placeholder_fill import FillDevice, FillHost
from .prev_sampled import PrevSampled
from .token_pool import TokenPool

__all__ = [
    "FillDevice",
    "FillHost",
    "FutureMapPool",
    "FutureMapRing",
    "HostTrip",
    "LazyChain",
    "PrevSampled",
    "Relay",
    "TokenPool",
    "UploadRelay",
]
