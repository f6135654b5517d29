"""The waiting queue: a list that each pass sorts, if its order asks for that."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ..core import Request
from ..memory import Match, RadixCache
from ..memory.radix_cache import TreeNode
from ..trace import Recorder

# -- In which order waiting requests are admitted --------------------------------------------------

LONG_QUEUE = 128  # requests; over it, matching them all at each step costs more than it brings
CHECK_THRESHOLD = 32  # tokens: a request with more than this cached is not looked at below
DEPRIORITIZE_THRESHOLD = 32  # tokens shared with an earlier waiting request: worth waiting for
REFRESH_INTERVAL = 32  # passes through the queue

RANKS: dict[str, Callable[[Request], int]] = {
    "fcfs": lambda req: 0,
    "lof": lambda req: -req.params.max_new_tokens,  # longest output first
}
"""Orders that look at the request alone: the least goes first, then whoever came first."""

Matches = list[tuple[Request, Match]]


def lpm(matches: Matches, tree: RadixCache) -> list[Request]:
    """Longest prefix match: who finds the most in the cache, before others push it out.

    A request that would find more once an earlier waiting one has run is put last.
    """
    last = deprioritized(matches, tree.page_size)

    def rank(item: tuple[Request, Match]) -> float:
        req, match = item
        cached = min(len(match.pages) * tree.page_size, req.known_len - 1)
        return float("inf") if req in last else -cached

    return [req for req, _ in sorted(matches, key=rank)]


def deprioritized(matches: Matches, page_size: int) -> set[Request]:
    """In-batch prefix caching: of those that share a long prefix which is not cached, all but one.

    A simulated tree of the waiting queue tells, with pages of one token whatever the cache's are
    (SGLang ``schedule_policy.py:_compute_prefix_matches``).
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
    """Depth first through the tree, the branch first that most requests wait on.

    So those who share a prefix run together, while it is there: first those who find more than the
    node's own prefix, then those who find just that.
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
"""Orders that look at the cache: matched again at each pass, as it changes."""

POLICIES = (*RANKS, "random", "priority", *CACHE_AWARE)
"""``priority`` is short for ``fcfs`` with ``enable_priority_scheduling``."""


class SchedulePolicy:
    """One of the orders (SGLang ``managers/schedule_policy.py:SchedulePolicy``).

    Each pass through the queue sorts what the last one has left, so among equals its order stays.
    ``enable_priority_scheduling`` puts priority before ``fcfs`` and ``lof``, and before nothing
    else. Without a radix tree the cache-aware orders are first come, first served (vLLM, whose
    cache is no tree, has no such order); so is ``lpm`` while more than ``LONG_QUEUE`` requests
    wait. ``refreshes``: from time to time, prefixes that somebody waits for count as used in a
    cache that gives up the least recently used.
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
        """What the request itself says of its place; the least goes first."""
        has_priority = self.by_priority and self.name in RANKS
        return -req.priority if has_priority else 0, RANKS.get(self.name, RANKS["fcfs"])(req)

    def sorts(self, num_waiting: int) -> bool:
        """Whether a pass has anything to sort: first come, first served stays as it is."""
        if self.name == "fcfs":
            return self.by_priority
        return self.name != "lpm" or num_waiting <= LONG_QUEUE

    def sort(self, waiting: Sequence[Request]) -> list[Request]:
        """The order of this pass, of requests in that of the last one."""
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
        """Let what those at the head of the queue will find count as used, the first one's last.

        SGLang ``_touch_waiting_prefixes``. An order that looks at the cache does so by looking.
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
    """Requests that hold no memory yet, or none any more (SGLang's ``waiting_queue``, a list).

    A pass sorts it in place and admits from its head; first come, first served sorts nothing, and
    costs what is admitted, however many wait. A request that has lost its memory waits behind all
    others, as in SGLang, or in its ``old_place`` (``policy/rules.py:retracted_waits``). One that
    has stale output in flight waits aside until it is added again (vLLM's ``skipped_waiting``): it
    cannot be admitted, and stops nobody.
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
        """In the order of the last pass, then who came since, then those aside."""
        return iter([*self.waiting, *self.aside])

    def __contains__(self, req: Request) -> bool:
        return req in self.waiting or req in self.aside

    def add(self, req: Request) -> None:
        """Let a request wait: at the end, unless it had a place and that is kept."""
        if req.num_stale_output_tokens:
            self.aside[req] = None
            return
        self.aside.pop(req, None)
        goes_back = self.old_place and req.retractions > 0
        if not goes_back:
            req.order = self.num_added
        self.num_added += 1
        self.waiting[req] = None
        if goes_back:
            by_rank = sorted(self.waiting, key=lambda req: (self.policy.rank(req), req.order))
            self.waiting = OrderedDict.fromkeys(by_rank)

    def first(self) -> Request | None:
        """Who is next, as far as the last pass can tell."""
        return next(iter(self.waiting), None)

    def remove(self, req: Request) -> None:
        """Let a request go, if it waits."""
        self.waiting.pop(req, None)
        self.aside.pop(req, None)

    def in_order(self) -> Iterator[Request]:
        """One pass: sorted now; who is to be admitted next, while each is taken out before that.

        The first one that stays ends it: whoever is refused stops those behind. Who is added
        meanwhile waits for the next pass.
        """
        if self.policy.sorts(len(self)):
            self.waiting = OrderedDict.fromkeys(self.policy.sort(list(self.waiting)))
            if self.policy.name in CACHE_AWARE:
                rids = " ".join(req.rid for req in [*self.waiting][:20])
                self.recorder.mark("queue order", policy=self.policy.name, rids=rids)
        self.policy.refresh(self.waiting)
        num_added = self.num_added

        def heads() -> Iterator[Request]:
            while (req := self.first()) is not None and req.order < num_added:
                yield req
                if req in self:
                    return

        return heads()
