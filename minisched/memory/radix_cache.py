"""The prefix cache as a radix tree: from the tokens of a prompt to the pages that hold their KV.

A node is the end of a cached prefix, or the point where two prefixes part. It keeps the pages
between its parent and itself. A match follows the tokens down from the root; if they part from an
edge, the edge is split. A lease locks the node at the end of its prefix, and with it all nodes
above. When memory is short, the unlocked leaf with the least priority is evicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from ..trace import NullRecorder, Recorder

# -- A node, and the edge above it -----------------------------------------------------------------


@dataclass(eq=False, slots=True, repr=False)
class TreeNode:
    """The end of a prefix (SGLang ``mem_cache/radix_cache.py:TreeNode``), and the edge to it.

    The edge has whole pages: their tokens (SGLang's ``key``) and their ids (``value``). Both are
    flat: with a tuple for every page, a match with pages of one token takes three times as long.
    Times are of the cache's clock.
    """

    parent: TreeNode | None  # None for the root, and for a node that was evicted
    tokens: tuple[int, ...]  # [num_pages * page_size]
    pages: list[int]  # [num_pages]
    page_size: int
    creation_time: int
    last_access_time: int
    id: int = 0  # for the trace; the root's is 0
    hit_count: int = 0  # insertions that made it or found it there
    lock_ref: int = 0  # locks held on this node or below it
    children: dict[tuple[int, ...], TreeNode] = field(default_factory=dict)  # by their first page

    def __repr__(self) -> str:
        return f"node {self.id}" if self.id else "the root"

    @property
    def num_pages(self) -> int:
        """Return the number of pages on the edge."""
        return len(self.pages)

    @property
    def first_page(self) -> tuple[int, ...]:
        """Return the tokens of the first page, by which the parent finds this node."""
        return self.tokens[: self.page_size]

    @property
    def beginning(self) -> str:
        """Return the first eight tokens for the trace; `` …`` if there are more."""
        more = ["…"] if len(self.tokens) > 8 else []
        return " ".join([*map(str, self.tokens[:8]), *more])

    @property
    def is_evictable_leaf(self) -> bool:
        """Return whether it can be evicted: it has neither a child nor a lock."""
        return not self.children and not self.lock_ref

    def shared_pages(self, tokens: Sequence[int], offset: int) -> int:
        """Return the number of pages of the edge with which ``tokens[offset:]`` begins.

        Compares blocks that double while they are equal and halve once they differ. That is as fast
        as a tuple comparison, and costs as much as the result is long, not the edge.
        """
        size = self.page_size
        end = min(self.num_pages, (len(tokens) - offset) // size)
        done, step = 0, 4
        while done < end:
            stop = min(done + step, end)
            low, high = done * size, stop * size
            theirs = tuple(tokens[offset + low : offset + high])
            if self.tokens[low:high] == theirs:
                done, step = stop, 2 * step
            elif stop == done + 1:
                break
            else:
                step = (stop - done) // 2
        return done

    def split(self, num_pages: int, id: int) -> TreeNode:
        """Put a node into the edge, after ``num_pages`` of it, and return that node.

        This one stays the lower end, so a lock on it still covers the whole path.
        """
        parent, size = self.parent, self.page_size
        assert parent is not None, "the root has no edge to split"
        at = num_pages * size
        node = TreeNode(
            parent, self.tokens[:at], self.pages[:num_pages], size, self.creation_time,
            self.last_access_time, id, hit_count=self.hit_count, lock_ref=self.lock_ref,
        )  # fmt: skip
        self.parent, self.tokens, self.pages = node, self.tokens[at:], self.pages[num_pages:]
        parent.children[node.first_page] = node
        node.children[self.first_page] = self
        return node


# -- The order of eviction -------------------------------------------------------------------------

Priority = Callable[[TreeNode], tuple[int, ...]]
"""Returns a node's priority: the least is evicted first. It never falls during a node's life."""


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
    """The unlocked leaves in a heap.

    SGLang keeps a set, and makes a heap of the whole set at every eviction. Here the heap stays,
    and its entries may be stale. A node that was used since its entry was written is put back with
    its new priority. A node that is locked or no leaf is dropped, and added again later. Priorities
    never fall, so the first entry that is up to date is the least of all. Each stale entry is
    caused by one match, insertion or lock, which pays for it.
    """

    def __init__(self, priority: Priority) -> None:
        self.priority = priority
        self._heap: list[tuple[tuple[int, ...], int, TreeNode]] = []
        self._inside: set[TreeNode] = set()  # for membership only; a node is in the heap once
        self._pushed = count()  # breaks ties: the first one in is the first one out

    def add(self, node: TreeNode) -> None:
        """Add a node that may just have become an unlocked leaf."""
        if node.is_evictable_leaf and node not in self._inside:
            self._inside.add(node)
            heapq.heappush(self._heap, (self.priority(node), next(self._pushed), node))

    def pop(self) -> TreeNode | None:
        """Remove and return the leaf with the least priority; None if every leaf is locked."""
        while self._heap:
            worth, _, node = heapq.heappop(self._heap)
            self._inside.remove(node)
            if node.is_evictable_leaf and worth == self.priority(node):
                return node
            self.add(node)
        return None


# -- The tree --------------------------------------------------------------------------------------


class Match(NamedTuple):
    """The longest cached prefix."""

    node: Any  # its end, a ``TreeNode`` or a ``Chain``: lock it before the next eviction
    pages: list[int]  # [num_pages] page ids, in order


class Insertion(NamedTuple):
    """The result of an insertion."""

    node: Any  # the end of the inserted prefix
    num_cached_pages: int  # leading pages that were cached before: a tree ignores their duplicates


class RadixCache:
    """A radix tree over pages (SGLang ``mem_cache/radix_cache.py``, mini-sglang ``kvcache/``).

    Only whole pages enter, because a page that is still being written can't be shared. Pages on the
    path of a lock are *protected*, others *evictable*; all sizes are in pages. Each change of the
    tree is recorded, so that it can be drawn for any moment.

    Raises:
        ValueError: ``page_size`` is below 1, or there is no such ``policy``.
    """

    def __init__(
        self,
        page_size: int = 1,
        policy: str = "lru",
        recorder: Recorder | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}; it must be at least 1")
        if policy not in POLICIES:
            raise ValueError(f"no eviction policy {policy!r}; there are {', '.join(POLICIES)}")
        self.page_size = page_size
        self.policy = policy
        self.recorder = recorder or NullRecorder()
        self.root_node = TreeNode(None, (), [], page_size, 0, 0, lock_ref=1)
        self.evictable_leaves = EvictableLeaves(POLICIES[policy])
        self._clock = count(1)  # logical: it moves on with every walk and every new node
        self._ids = count(1)
        self.evictable_size = 0
        self.protected_size = 0

    def match_prefix(self, tokens: Sequence[int]) -> Match:
        """Return the longest prefix of ``tokens`` in the tree, in whole pages.

        The caller leaves out a prompt's last token, which must be computed to sample from it.
        """
        return self._walk(tokens)

    def insert(
        self, tokens: Sequence[int], pages: Sequence[int], inserted_pages: int = 0
    ) -> Insertion:
        """Add the pages of ``tokens`` that the tree lacks.

        ``pages`` lists the page ids in order. Duplicates of cached pages stay with the caller, and
        so does a last page that the tokens fill only in part. Nodes within the first
        ``inserted_pages`` do not count a hit: the same request has inserted them before.

        Raises:
            ValueError: there are fewer page ids than whole pages of tokens.
        """
        size, num_pages = self.page_size, len(tokens) // self.page_size
        if len(pages) < num_pages:
            raise ValueError(f"{num_pages} whole pages of tokens came with {len(pages)} page ids")
        node, cached = self._walk(tokens, inserted_pages)
        if (num_cached := len(cached)) < num_pages:
            now, parent = next(self._clock), node
            node = TreeNode(
                parent, tuple(tokens[num_cached * size : num_pages * size]),
                list(pages[num_cached:num_pages]), size, now, now, next(self._ids),
                hit_count=int(num_pages > inserted_pages),
            )  # fmt: skip
            parent.children[node.first_page] = node
            self.evictable_size += node.num_pages
            self.evictable_leaves.add(node)
            if self.recorder.is_on:
                self.recorder.mark(
                    "radix add", node=node.id, parent=parent.id, pages=node.num_pages,
                    tokens=node.beginning, page_ids=tuple(node.pages),
                )  # fmt: skip
        return Insertion(node, num_cached)

    def inc_lock_ref(self, node: TreeNode) -> None:
        """Keep the prefix that ends at ``node`` from being evicted.

        Raises:
            ValueError: ``node`` was evicted.
        """
        for above in self._path(node):
            if above.lock_ref == 0:
                self.evictable_size -= above.num_pages
                self.protected_size += above.num_pages
            above.lock_ref += 1
        self.recorder.mark("radix lock", node=node.id, lock_ref=node.lock_ref, delta=1)

    def dec_lock_ref(self, node: TreeNode) -> None:
        """Undo one ``inc_lock_ref``.

        Raises:
            ValueError: no lock is held on ``node``.
        """
        path = self._path(node)
        if not node.lock_ref:
            raise ValueError("dec_lock_ref on a node, but its lock_ref is 0; it must be at least 1")
        for above in path:
            above.lock_ref -= 1
            if above.lock_ref == 0:
                self.evictable_size += above.num_pages
                self.protected_size -= above.num_pages
        self.evictable_leaves.add(node)
        self.recorder.mark("radix lock", node=node.id, lock_ref=node.lock_ref, delta=-1)

    def move_lock(self, node: TreeNode, to: TreeNode) -> None:
        """Move one lock to ``to``, the new end of the same prefix."""
        self.inc_lock_ref(to)
        self.dec_lock_ref(node)

    def num_pages_locked(self, node: TreeNode, times: int) -> int:
        """Return the number of pages up to ``node`` with exactly ``times`` locks."""
        path = self._path(node)
        return sum(above.num_pages for above in path if above.lock_ref == times)

    def evict(self, num_pages: int) -> list[int]:
        """Evict at least ``num_pages`` pages, or all evictable ones; return their ids.

        Whole leaves are evicted, so it may be more. A parent may become the next leaf.
        """
        evicted: list[int] = []
        while len(evicted) < num_pages and (leaf := self.evictable_leaves.pop()):
            evicted += leaf.pages
            self.evictable_size -= leaf.num_pages
            parent, leaf.parent = leaf.parent, None
            assert parent is not None, "the root is locked"
            del parent.children[leaf.first_page]
            self.evictable_leaves.add(parent)
            self.recorder.mark("radix evict", node=leaf.id, pages=leaf.num_pages)
        return evicted

    def _walk(self, tokens: Sequence[int], counts_beyond: int | None = None) -> Match:
        """Follow ``tokens`` down, split an edge if they part from it, and refresh the path.

        Only insertions count as hits (SGLang #18843), because a waiting request matches at every
        step. Only nodes that end beyond ``counts_beyond`` pages count them.
        """
        now = next(self._clock)
        node, at, size = self.root_node, 0, self.page_size
        pages: list[int] = []
        while child := node.children.get(tuple(tokens[at : at + size])):
            shared = child.shared_pages(tokens, at)
            if is_whole := shared == child.num_pages:
                node = child
                node.last_access_time = now
            else:
                node = self._split(child, shared, now)
            pages += node.pages
            if counts_beyond is not None and len(pages) > counts_beyond:
                node.hit_count += 1
            at += shared * size
            if not is_whole:
                break
        return Match(node, pages)

    def _split(self, child: TreeNode, num_pages: int, now: int) -> TreeNode:
        """Split the edge above ``child`` after ``num_pages``, in a walk begun at ``now``."""
        node = child.split(num_pages, next(self._ids))
        self.on_split(node, child, now)
        if self.recorder.is_on:
            self.recorder.mark(
                "radix split", node=node.id, child=child.id, pages=num_pages,
                tokens=node.beginning, child_tokens=child.beginning,
            )  # fmt: skip
        return node

    def on_split(self, upper: TreeNode, lower: TreeNode, now: int) -> None:
        """Count both halves of an edge as just used, the upper one as newly made (SGLang)."""
        lower.last_access_time = now
        upper.creation_time = upper.last_access_time = next(self._clock)

    def _path(self, node: TreeNode) -> list[TreeNode]:
        """Return the nodes from ``node`` up, without the root."""
        path = []
        while node.parent:
            path.append(node)
            node = node.parent
        if node is not self.root_node:
            raise ValueError("the node is not in the tree; it was evicted before it was locked")
        return path
