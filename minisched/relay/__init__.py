"""How a sampled token reaches the next step: over the host, or without it."""

from .base import DraftRelay, HostTrip, Relay, RowRelay, UploadRelay
from .future_map import FutureMapRing
from .future_map_pool import FutureMapPool
from .lazy_chain import LazyChain
from .placeholder_fill import FillDevice, FillHost
from .prev_sampled import PrevSampled
from .token_pool import TokenPool

__all__ = [
    "DraftRelay",
    "FillDevice",
    "FillHost",
    "FutureMapPool",
    "FutureMapRing",
    "HostTrip",
    "LazyChain",
    "PrevSampled",
    "Relay",
    "RowRelay",
    "TokenPool",
    "UploadRelay",
]
