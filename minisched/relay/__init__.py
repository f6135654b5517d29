"""How a sampled token reaches the next step: over the host, or without it."""

from .base import HostTrip, Relay
from .future_map import FutureMapPool, FutureMapRing
from .lazy_chain import LazyChain

__all__ = ["FutureMapPool", "FutureMapRing", "HostTrip", "LazyChain", "Relay"]
