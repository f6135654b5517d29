"""Which leaf of the radix tree is given up first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .radix_node import TreeNode

Priority = Callable[["TreeNode"], tuple[int, ...]]
"""What a node is worth: the least goes first. Must never fall during a node's life."""


def lru(node: TreeNode) -> tuple[int, ...]:
    """Least recently used."""
    return (node.last_access_time,)


def lfu(node: TreeNode) -> tuple[int, ...]:
    """Least frequently used, the least recent among equals."""
    return (node.hit_count, node.last_access_time)


def fifo(node: TreeNode) -> tuple[int, ...]:
    """First in, first out."""
    return (node.creation_time,)


POLICIES: dict[str, Priority] = {"lru": lru, "lfu": lfu, "fifo": fifo}
"""By the name that ``RadixCache`` takes (SGLang ``mem_cache/evict_policy.py``)."""


class EvictableLeaves:
    """The leaves that nobody has locked, in a heap.

    SGLang keeps a set, and makes a heap of the whole set at every eviction. Here the heap stays,
    and may lag behind the tree: a node that was used since its entry was written is put back by
    what it is worth now, and one that is no leaf or locked by now is dropped (it is added again
    when that ends). As worth never falls, the first entry that is up to date is the least of all.
    Each entry passed over is paid for by the match, insertion or lock that made it stale.
    """

    def __init__(self, priority: Priority) -> None:
        self.priority = priority
        self._heap: list[tuple[tuple[int, ...], int, TreeNode]] = []
        self._inside: set[TreeNode] = set()  # for membership only; a node is in the heap once
        self._pushed = count()  # breaks ties: whoever came first goes first

    def add(self, node: TreeNode) -> None:
        """Add a node that may just have become an unlocked leaf."""
        if node.is_evictable_leaf and node not in self._inside:
            self._inside.add(node)
            heapq.heappush(self._heap, (self.priority(node), next(self._pushed), node))

    def pop(self) -> TreeNode | None:
        """Take out the leaf that is worth least; None if every leaf is locked."""
        while self._heap:
            worth, _, node = heapq.heappop(self._heap)
            self._inside.remove(node)
            if node.is_evictable_leaf and worth == self.priority(node):
                return node
            self.add(node)
        return None
