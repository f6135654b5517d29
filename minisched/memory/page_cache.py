"""What leases ask of a prefix cache, be it a radix tree or a map from hashes to blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Node = Any  # where a cached prefix ends, as the cache knows it: a tree's node, or a chain of blocks


class Found(Protocol):
    """The longest cached prefix."""

    @property
    def node(self) -> Node:
        """Where it ends: lock it before anything can be evicted."""

    @property
    def pages(self) -> list[int]:
        """[num_pages] page ids, in order."""


class Inserted(Protocol):
    """What became of pages that were offered."""

    @property
    def node(self) -> Node:
        """Where the inserted prefix ends."""

    @property
    def num_cached_pages(self) -> int:
        """Leading pages that are others' by now: their duplicates stay the caller's."""


class PageCache(Protocol):
    """``RadixCache`` (SGLang) or ``BlockPool`` (vLLM); all sizes are in pages.

    A page in it is *protected* while a lock is held on a prefix that it belongs to, else
    *evictable*.
    """

    page_size: int

    @property
    def evictable_size(self) -> int:
        """Pages that could be given up now."""

    @property
    def protected_size(self) -> int:
        """Pages that could not."""

    @property
    def total_size(self) -> int:
        """Both together."""

    def match_prefix(self, tokens: Sequence[int]) -> Found:
        """The longest cached prefix of ``tokens``, in whole pages."""

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> Inserted:
        """Give it the pages of ``tokens`` that it lacks."""

    def inc_lock_ref(self, node: Node) -> None:
        """Keep the prefix that ends at ``node`` from being evicted."""

    def dec_lock_ref(self, node: Node) -> None:
        """Take one ``inc_lock_ref`` back."""

    def move_lock(self, node: Node, to: Node) -> None:
        """Take one ``inc_lock_ref`` on, to where the same prefix has grown to."""

    def num_pages_locked(self, node: Node, times: int) -> int:
        """Pages of the prefix that ends at ``node`` on which so many locks are held."""

    def retain(self, pages: Sequence[int]) -> Sequence[int]:
        """A lease lets go of pages that are not in it: those that it does not keep in its line."""

    def evict(self, num_pages: int) -> list[int]:
        """Give back at least ``num_pages`` page ids, or all that are evictable if fewer."""
