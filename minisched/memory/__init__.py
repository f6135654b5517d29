"""The host's lists of what memory is whose. The radix cache will live beside them."""

from .page_allocator import PageAllocator
from .req_to_token import OwnershipError, ReqToTokenPool

__all__ = ["OwnershipError", "PageAllocator", "ReqToTokenPool"]
