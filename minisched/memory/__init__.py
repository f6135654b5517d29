"""The host's view of KV memory: rows, pages, leases on both, and the prefix cache."""

from .block_pool import BlockPool
from .pool import LeasePool, PageAllocator, PageCache
from .prefix_cache import PrefixCache
from .radix_cache import Match, RadixCache
from .req_to_token import OwnershipError, ReqToTokenPool
from .self_check import MemoryLeak, flush_cache, self_check

__all__ = [
    "BlockPool",
    "LeasePool",
    "Match",
    "MemoryLeak",
    "OwnershipError",
    "PageAllocator",
    "PageCache",
    "PrefixCache",
    "RadixCache",
    "ReqToTokenPool",
    "flush_cache",
    "self_check",
]
