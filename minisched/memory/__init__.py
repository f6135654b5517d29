"""The host's view of KV memory: rows, pages, leases on both, and the prefix cache."""

from .block_pool import BlockPool
from .lease_pool import LeasePool
from .page_allocator import PageAllocator
from .page_cache import PageCache
from .prefix_cache import PrefixCache
from .radix_cache import Match, RadixCache
from .req_to_token import OwnershipError, ReqToTokenPool

__all__ = [
    "BlockPool",
    "LeasePool",
    "Match",
    "OwnershipError",
    "PageAllocator",
    "PageCache",
    "PrefixCache",
    "RadixCache",
    "ReqToTokenPool",
]
