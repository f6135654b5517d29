"""The host's lists of what memory is whose. The radix cache will live beside them."""

from .lease_pool import LeasePool
from .page_allocator import PageAllocator
from .req_to_token import OwnershipError, ReqToTokenPool

__all__ = ["LeasePool", "OwnershipError", "PageAllocator", "ReqToTokenPool"]
