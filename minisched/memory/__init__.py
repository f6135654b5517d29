"""The host's view of KV memory: rows, pages, leases on both, and the prefix cache."""

from .lease_pool import LeasePool
from .page_allocator import PageAllocator
from .prefix_cache import PrefixCache
from .radix_cache import Match, RadixCache
from .req_to_token import OwnershipError, ReqToTokenPool

__all__ = [
    "LeasePool",
    "Match",
    "OwnershipError",
    "PageAllocator",
    "PrefixCache",
    "RadixCache",
    "ReqToTokenPool",
]
