"""The host's lists of what memory is whose; ``radix_cache.py`` is not used by the scheduler yet."""

from .lease_pool import LeasePool
from .page_allocator import PageAllocator
from .req_to_token import OwnershipError, ReqToTokenPool

__all__ = ["LeasePool", "OwnershipError", "PageAllocator", "ReqToTokenPool"]
