"""The order in which waiting requests are to be admitted, as ``schedule_policy`` declares it.

Told a second time, without the code of the policies and without touching the cache they look at:
``decision.py`` holds every admission against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...core import Request
from ...memory import RadixCache
from ...memory.radix_cache import TreeNode
from ...policy.waiting import CHECK_THRESHOLD, DEPRIORITIZE_THRESHOLD, LONG_QUEUE
from ...scheduler import Scheduler

Pages = tuple[tuple[int, ...], ...]  # tokens, page by page
Path = list[tuple[TreeNode, int]]  # from the root down: nodes, and how many pages of each

BY_CACHE = ("lpm", "dfs-weight")


class QueueOrder:
    """In which order those who wait go, as the cache is before a decision.

    ``fcfs``: as they came to wait. ``lof``: the longest output first; priority, if it is on, goes
    before both. ``random``: any. ``lpm``: who finds most in the cache, but last who would find more
    once an earlier one has run. ``dfs-weight``: depth first through the cache, the branch first on
    which most of them wait. Among equals whoever came first; with the last two, whoever stood first
    after the pass before. Of branches that weigh the same, either. Without a cache these two are
    ``fcfs``; where many wait, ``lpm`` leaves all as they stand.
    """

    def __init__(self, scheduler: Scheduler, places: Mapping[Request, int]) -> None:
        self.config, self.places = scheduler.config, places
        self.tree = scheduler.tree
        self.policy = self.config.schedule_policy
        self.by_priority = self.config.enable_priority_scheduling or self.policy == "priority"
        if self.tree is None and self.policy in BY_CACHE:
            self.policy = "fcfs"
        self.stands = {req: at for at, req in enumerate(scheduler.waiting_queue)}
        self.leaves_all = self.policy == "lpm" and len(scheduler.waiting_queue) > LONG_QUEUE
        self.found: dict[Request, Pages] = {}  # what each finds in the cache

    def add(self, req: Request) -> None:
        """It waits, too."""
        self.stands.setdefault(req, len(self.stands))
        if self.tree is not None and self.policy in BY_CACHE and not self.leaves_all:
            tokens = req.known_tokens(0, req.known_len)
            num_pages = sum(count for _, count in walk(self.tree, tokens))
            self.found[req] = in_pages(tokens, self.tree.page_size)[:num_pages]

    def heads(self, waiting: Iterable[Request]) -> list[Request]:
        """Who of them is next; several where the policy does not say which."""
        waiting = list(waiting)
        return [req for req in waiting if not any(self.precedes(other, req) for other in waiting)]

    def precedes(self, one: Request, other: Request) -> bool:
        """Whether ``one`` has to be admitted before ``other``."""
        if self.policy == "random":
            return False
        if self.policy == "dfs-weight" and self.found[one] != self.found[other]:
            return self._is_before(self.found[one], self.found[other])
        return self._key(one) < self._key(other)

    def _key(self, req: Request) -> tuple[int, int, int]:
        """The least goes first; ``dfs-weight`` asks only for those who wait at one node."""
        if self.policy in BY_CACHE:
            last, cached = False, 0
            if self.policy == "lpm" and not self.leaves_all:
                cached = min(len(self.found[req]) * self.config.page_size, req.known_len - 1)
                last = req in self._last()
            return last, 0 if last else -cached, self.stands[req]
        place = self.places[req]
        longest_first = -req.params.max_new_tokens if self.policy == "lof" else 0
        return -req.priority if self.by_priority else 0, longest_first, place

    def _is_before(self, one: Pages, other: Pages) -> bool:
        """Depth first: what ends lower down, then the branch on which more of them wait."""
        at = num_shared(one, other)
        if at in (len(one), len(other)):
            return len(one) > len(other)
        here, there = (
            sum(found[: at + 1] == branch[: at + 1] for found in self.found.values())
            for branch in (one, other)
        )
        return here > there

    def _last(self) -> set[Request]:
        """Of those that share a long prefix which is not cached, all but the first."""
        last, earlier, size = set[Request](), list[tuple[int, ...]](), self.config.page_size
        for req in sorted(self.found, key=self.stands.__getitem__):
            if len(self.found[req]) * size > CHECK_THRESHOLD:
                continue
            tokens = req.known_tokens(0, req.known_len)
            shared = max((num_shared(tokens, item) for item in earlier), default=0)
            if shared >= DEPRIORITIZE_THRESHOLD:
                last.add(req)
            else:
                earlier.append(tokens)
        return last


def walk(tree: RadixCache, tokens: Sequence[int]) -> Path:
    """Where ``tokens`` lead in the cache, which stays as it is: no split, no time of access."""
    node, at, size, path = tree.root_node, 0, tree.page_size, Path()
    while child := node.children.get(tuple(tokens[at : at + size])):
        shared = child.shared_pages(tokens, at)
        path.append((child, shared))
        node, at = child, at + shared * size
        if shared < child.num_pages:
            break
    return path


def in_pages(tokens: Sequence[int], size: int) -> Pages:
    """The whole pages of some tokens."""
    return tuple(tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size))


def num_shared(one: Sequence[object], other: Sequence[object]) -> int:
    """How many pages, or tokens, both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
