"""In which order waiting requests are admitted."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence

from ..core import Request
from ..memory import Match, RadixCache
from ..memory.radix_node import TreeNode

LONG_QUEUE = 128  # requests; over it, matching them all at each step costs more than it brings
CHECK_THRESHOLD = 32  # tokens: a request with more than this cached is not looked at below
DEPRIORITIZE_THRESHOLD = 32  # tokens shared with an earlier waiting request: worth waiting for

Rank = Callable[[Request, int], int]
RANKS: dict[str, Rank] = {
    "fcfs": lambda req, seed: 0,
    "lof": lambda req, seed: -req.params.max_new_tokens,  # longest output first
    "random": lambda req, seed: zlib.crc32(f"{seed} {req.rid}".encode()),
    "priority": lambda req, seed: -req.priority,
}
"""Orders that look at the request alone: the least goes first, then whoever came first."""


def lpm(matches: list[tuple[Request, Match]], page_size: int) -> list[Request]:
    """Longest prefix match: who finds the most in the cache, before others push it out.

    A request that would find more once an earlier waiting one has run is put last.
    """
    last = deprioritized(matches, page_size)
    ranked = sorted(matches, key=lambda item: (item[0] in last, -len(item[1].pages)))
    return [req for req, _ in ranked]


def deprioritized(matches: list[tuple[Request, Match]], page_size: int) -> set[Request]:
    """In-batch prefix caching: of those that share a long prefix which is not cached, all but one.

    A simulated tree of the waiting queue tells (SGLang ``schedule_policy.py``).
    """
    waiting_queue_radix_tree = RadixCache(page_size)
    found: set[Request] = set()
    for req, match in matches:
        if len(match.pages) * page_size > CHECK_THRESHOLD:
            continue
        tokens = req.known_tokens(0, req.known_len)
        shared = waiting_queue_radix_tree.match_prefix(tokens)
        if len(shared.pages) * page_size >= DEPRIORITIZE_THRESHOLD:
            found.add(req)
        else:
            waiting_queue_radix_tree.insert(tokens, range(len(tokens) // page_size))
    return found


def dfs_weight(matches: list[tuple[Request, Match]], page_size: int) -> list[Request]:
    """Depth first through the tree, the branch that most requests wait on first.

    So those who share a prefix run together, while it is there.
    """
    weight: Counter[TreeNode] = Counter()
    at: dict[TreeNode, list[Request]] = {}
    for req, match in matches:
        at.setdefault(match.node, []).append(req)
        node: TreeNode | None = match.node
        while node is not None:
            weight[node] += 1
            node = node.parent
    ordered: list[Request] = []
    stack = [node for node in weight if node.parent is None]
    while stack:
        node = stack.pop()
        ordered += at.get(node, [])
        children = [child for child in node.children.values() if weight[child]]
        stack += sorted(children, key=lambda child: weight[child])
    return ordered


CACHE_AWARE: dict[str, Callable[[list[tuple[Request, Match]], int], list[Request]]] = {
    "lpm": lpm,
    "dfs-weight": dfs_weight,
}
"""Orders that look at the cache: matched again at each step, as it changes."""

POLICIES = (*RANKS, *CACHE_AWARE)


class SchedulePolicy:
    """One of the orders (SGLang ``managers/schedule_policy.py:SchedulePolicy``).

    Without a radix tree, or while more than ``LONG_QUEUE`` requests wait, the cache-aware ones
    are first come, first served. (vLLM, whose cache is no tree, has no such order; SGLang
    lets ``dfs-weight`` sort a queue of any length.)
    """

    def __init__(self, name: str, tree: RadixCache | None, seed: int = 0) -> None:
        self.name = name
        self.tree = tree
        self.seed = seed

    def rank(self, req: Request) -> int:
        """What the order of a long queue goes by; the least goes first."""
        return RANKS.get(self.name, RANKS["fcfs"])(req, self.seed)

    def is_cache_aware(self, num_waiting: int) -> bool:
        """Whether the cache decides, with that many requests waiting."""
        return self.name in CACHE_AWARE and self.tree is not None and num_waiting <= LONG_QUEUE

    def sort(self, waiting: Sequence[Request]) -> list[Request]:
        """The order that the cache, as it is now, gives requests listed by arrival."""
        assert self.tree is not None
        match_prefix = self.tree.match_prefix
        matches = [(req, match_prefix(req.known_tokens(0, req.known_len - 1))) for req in waiting]
        return CACHE_AWARE[self.name](matches, self.tree.page_size)
