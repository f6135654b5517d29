"""The waiting queue: a list that each pass sorts, unless it is first come, first served."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ..core import Request
from ..memory import Match, RadixCache
from ..memory.radix_cache import TreeNode
from ..trace import Recorder

# -- The order of admission ------------------------------------------------------------------------

LONG_QUEUE = 128  # requests; in a longer queue, matching all at each step costs more than it saves
CHECK_THRESHOLD = 32  # tokens: a request with more than this cached is not looked at below
DEPRIORITIZE_THRESHOLD = 32  # tokens shared with an earlier waiting request that justify waiting
REFRESH_INTERVAL = 32  # passes through the queue

RANKS: dict[str, Callable[[Request], int]] = {
    "fcfs": lambda req: 0,
    "lof": lambda req: -req.params.max_new_tokens,  # longest output first
}
"""Orders by the request alone: the least goes first; among equals the first to arrive."""

Matches = list[tuple[Request, Match]]


def lpm(matches: Matches, tree: RadixCache) -> list[Request]:
    """Longest prefix match: first the requests with the most cached tokens, before these go.

    A request that would find more after an earlier waiting one has run is put last.
    """
    last = deprioritized(matches, tree.page_size)

    def rank(item: tuple[Request, Match]) -> float:
        """Return the sort key of a request."""
        req, match = item
        cached = min(len(match.pages) * tree.page_size, req.known_len - 1)
        return float("inf") if req in last else -cached

    return [req for req, _ in sorted(matches, key=rank)]


def deprioritized(matches: Matches, page_size: int) -> set[Request]:
    """Return, for each long uncached prefix, all requests that share it but the first.

    This is in-batch prefix caching (SGLang ``schedule_policy.py:_compute_prefix_matches``). A
    simulated tree holds the waiting queue, in pages of one token.
    """
    waiting_queue_radix_tree = RadixCache()
    found: set[Request] = set()
    for req, match in matches:
        if len(match.pages) * page_size > CHECK_THRESHOLD:
            continue
        tokens = req.known_tokens(0, req.known_len)
        if len(waiting_queue_radix_tree.match_prefix(tokens).pages) >= DEPRIORITIZE_THRESHOLD:
            found.add(req)
        else:
            waiting_queue_radix_tree.insert(tokens, range(len(tokens)))
    return found


def dfs_weight(matches: Matches, tree: RadixCache) -> list[Request]:
    """Depth first through the tree, the branch with the most waiting requests first.

    Requests that share a prefix then run together, while it is cached. At each node, requests that
    match a longer prefix go before those that match just this one.
    """
    weight: Counter[TreeNode] = Counter()
    at: dict[TreeNode, list[Request]] = {}
    for req, match in matches:
        at.setdefault(match.node, []).append(req)
        node: TreeNode | None = match.node
        while node is not None:
            weight[node] += 1
            node = node.parent
    from_the_last: list[Request] = []
    stack = [tree.root_node]
    while stack:
        node = stack.pop()
        from_the_last += reversed(at.get(node, []))
        children = [child for child in node.children.values() if weight[child]]
        stack += sorted(children, key=lambda child: -weight[child])
    return from_the_last[::-1]


CACHE_AWARE: dict[str, Callable[[Matches, RadixCache], list[Request]]] = {
    "lpm": lpm,
    "dfs-weight": dfs_weight,
}
"""Orders by the cache: each pass matches the requests again, because the cache changes."""

POLICIES = (*RANKS, "random", "priority", *CACHE_AWARE)
"""``priority`` is short for ``fcfs`` with ``enable_priority_scheduling``."""


class SchedulePolicy:
    """One of the orders (SGLang ``managers/schedule_policy.py:SchedulePolicy``).

    Each pass sorts the order of the last one, so equal requests keep their order.
    ``enable_priority_scheduling`` puts priority before ``fcfs`` and ``lof``; it changes no other
    order. Without a radix tree the cache-aware orders are first come, first served (vLLM's cache is
    no tree, and vLLM has no such order). So is ``lpm`` while more than ``LONG_QUEUE`` requests
    wait. ``refreshes``: at intervals, the prefixes of waiting requests count as used in an LRU
    cache.
    """

    def __init__(
        self,
        name: str,
        tree: RadixCache | None,
        seed: int = 0,
        enable_priority_scheduling: bool = False,
        refreshes: bool = True,
    ) -> None:
        self.by_priority = enable_priority_scheduling or name == "priority"
        is_fcfs = name == "priority" or (name in CACHE_AWARE and tree is None)
        self.name = "fcfs" if is_fcfs else name
        self.tree = tree
        self.dice = random.Random(seed)
        self.refreshes = refreshes and tree is not None and tree.policy == "lru"
        self.num_refreshable = 0  # passes

    def rank(self, req: Request) -> tuple[int, int]:
        """Return the request's own part of the order; the least goes first."""
        has_priority = self.by_priority and self.name in RANKS
        return -req.priority if has_priority else 0, RANKS.get(self.name, RANKS["fcfs"])(req)

    def sorts(self, num_waiting: int) -> bool:
        """Return whether a pass sorts; first come, first served does not."""
        if self.name == "fcfs":
            return self.by_priority
        return self.name != "lpm" or num_waiting <= LONG_QUEUE

    def sort(self, waiting: Sequence[Request]) -> list[Request]:
        """Return the order of this pass; ``waiting`` is in the order of the last one."""
        if self.name in CACHE_AWARE:
            assert self.tree is not None
            match_prefix = self.tree.match_prefix
            matches = [(req, match_prefix(req.known_tokens(0, req.known_len))) for req in waiting]
            return CACHE_AWARE[self.name](matches, self.tree)
        ordered = list(waiting)
        if self.name == "random":
            self.dice.shuffle(ordered)
        else:
            ordered.sort(key=self.rank)
        return ordered

    def refresh(self, waiting: Sequence[Request] | dict[Request, None]) -> None:
        """Count the cached prefixes at the head of the queue as used, the first request's last.

        SGLang ``_touch_waiting_prefixes``. A cache-aware order does that by matching.
        """
        looks = self.name in CACHE_AWARE and self.sorts(len(waiting))
        if not (waiting and self.refreshes) or looks:
            return
        if self.num_refreshable % REFRESH_INTERVAL == 0:
            assert self.tree is not None
            for req in reversed(list(islice(waiting, LONG_QUEUE))):
                self.tree.match_prefix(req.known_tokens(0, req.known_len))
        self.num_refreshable += 1


class WaitingQueue:
    """Requests without memory (SGLang's ``waiting_queue``, a list).

    A pass sorts it in place and admits from its head. First come, first served sorts nothing, so
    a pass costs as much as it admits. A retracted request waits at the end, as in SGLang, or in
    its ``old_place`` (``policy/rules.py:retracted_waits``). A request with stale output in flight
    waits aside until it is added again (vLLM's ``skipped_waiting``): it can't be admitted, and
    delays no other request.
    """

    def __init__(self, policy: SchedulePolicy, recorder: Recorder, old_place: bool = False) -> None:
        self.policy = policy
        self.recorder = recorder
        self.old_place = old_place
        self.num_added = 0  # so far
        self.waiting: OrderedDict[Request, None] = OrderedDict()
        self.aside: dict[Request, None] = {}  # those with stale output in flight

    def __len__(self) -> int:
        return len(self.waiting) + len(self.aside)

    def __iter__(self) -> Iterator[Request]:
        """In the order of the last pass, then later arrivals, then those aside."""
        return iter([*self.waiting, *self.aside])

    def __contains__(self, req: Request) -> bool:
        return req in self.waiting or req in self.aside

    def add(self, req: Request) -> None:
        """Add a request at the end, or in its old place."""
        if is_held(req):
            self.aside[req] = None
            return
        self.aside.pop(req, None)
        goes_back = self.old_place and req.admission.retractions > 0
        if not goes_back:
            req.admission.order = self.num_added
        self.num_added += 1
        self.waiting[req] = None
        if goes_back:
            by_rank = sorted(
                self.waiting, key=lambda req: (self.policy.rank(req), req.admission.order)
            )
            self.waiting = OrderedDict.fromkeys(by_rank)

    def first(self) -> Request | None:
        """Return the next request in the order of the last pass."""
        return next(iter(self.waiting), None)

    def remove(self, req: Request) -> None:
        """Remove a request, if it waits."""
        self.waiting.pop(req, None)
        self.aside.pop(req, None)

    def in_order(self) -> Iterator[Request]:
        """Start a pass: sort, then yield each next request, which the caller removes if admitted.

        The first request that is not removed ends the pass, because it stops all later ones. A
        request that is added meanwhile waits for the next pass.
        """
        if self.policy.sorts(len(self)):
            self.waiting = OrderedDict.fromkeys(self.policy.sort(list(self.waiting)))
            if self.policy.name in CACHE_AWARE:
                rids = tuple(req.rid for req in [*self.waiting][:20])
                self.recorder.mark("queue order", policy=self.policy.name, rids=rids)
        self.policy.refresh(self.waiting)
        num_added = self.num_added

        def heads() -> Iterator[Request]:
            """Yield the first request again and again, until only later ones wait."""
            while (req := self.first()) is not None and req.admission.order < num_added:
                yield req
                if req in self:
                    return

        return heads()


def is_held(req: Request) -> bool:
    """Return whether a feature forbids the admission of a request for now."""
    return any(part.is_held for part in req.parts)
