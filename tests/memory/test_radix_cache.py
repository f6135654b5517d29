"""The radix cache is a dictionary of all prefixes that forgets in order; pages have one owner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minisched.core import Lease, Request, Result, SamplingParams
from minisched.memory import OwnershipError, PageAllocator, ReqToTokenPool
from minisched.memory.radix_cache import POLICIES, RadixCache, TreeNode
from minisched.scheduler import Scheduler, SchedulerConfig
from minisched.scheduler.wiring import TREES
from tests.support import many

Prefix = tuple[int, ...]
Time = tuple[
    int, int
]  # which walk; in it 0: all that it came along, 1: an edge split, 2: a new leaf

# -- radix_cache: against a dictionary of prefixes that has no tree --------------------------------


def tokens_of(letters: str, page_size: int, tail: int = 0) -> list[int]:
    """A page for every letter, then part of a page A. Pages differ in one token: first or last."""
    tokens: list[int] = []
    for letter in letters:
        page = [0] * page_size
        page[0 if letter == "B" else -1] = ord(letter) - ord("A")
        tokens += page
    return tokens + [0] * (tail % page_size)


def path_of(node: TreeNode) -> Prefix:
    """The tokens from the root down to a node."""
    tokens: Prefix = ()
    while node.parent:
        tokens = node.tokens + tokens
        node = node.parent
    return tokens


def nodes_below(node: TreeNode) -> Iterator[TreeNode]:
    for child in node.children.values():
        yield child
        yield from nodes_below(child)


def contents(cache: RadixCache) -> list[tuple[Prefix, int, int]]:
    """Every page in the tree: the prefix that it ends, its id, and the locks on its node."""
    found = []
    for node in nodes_below(cache.root_node):
        path = path_of(node)
        for back, page_id in enumerate(reversed(node.pages)):
            found.append((path[: len(path) - back * cache.page_size], page_id, node.lock_ref))
    return found


@dataclass
class Page:
    """What the model knows of one page."""

    page_id: int
    creation_time: Time
    last_access_time: Time
    hit_count: int = 0


ORDERS: dict[str, Callable[[Page], Any]] = {
    "lru": lambda page: page.last_access_time,
    "lfu": lambda page: (page.hit_count, page.last_access_time),
    "fifo": lambda page: page.creation_time,
}


class PrefixDict:
    """The model: every cached prefix in whole pages, by its tokens.

    ``ends`` is all that it keeps of the shape: where walks have ended. A leaf is a prefix that no
    other extends, and goes whole: back to the last end above it.
    """

    def __init__(self, page_size: int, policy: str, split_counts: str) -> None:
        self.page_size, self.order = page_size, ORDERS[policy]
        self.split_counts = split_counts
        self.pages: dict[Prefix, Page] = {}
        self.ends: set[Prefix] = set()
        self.locks: list[Prefix] = []
        self.now = 0

    def prefixes(self, tokens: Sequence[int]) -> list[Prefix]:
        size = self.page_size
        return [tuple(tokens[:end]) for end in range(size, len(tokens) + 1, size)]

    def lock_counts(self) -> Counter[Prefix]:
        return Counter(prefix for lock in self.locks for prefix in self.prefixes(lock))

    def match(self, tokens: Sequence[int]) -> list[Prefix]:
        self.now += 1
        cached = [prefix for prefix in self.prefixes(tokens) if prefix in self.pages]
        whole = max((at for at, prefix in enumerate(cached, 1) if prefix in self.ends), default=0)
        upper = cached[whole:]  # of an edge that is split now
        for prefix in cached if self.split_counts != "neither" else cached[:whole]:
            self.pages[prefix].last_access_time = (self.now, 0)
        if upper and self.split_counts == "both":
            for prefix in upper:
                page = self.pages[prefix]
                page.creation_time = page.last_access_time = (self.now, 1)
            for prefix in self.rest_of_edge(upper[-1]):
                self.pages[prefix].last_access_time = (self.now, 0)
        self.ends |= set(cached[-1:])
        return cached

    def rest_of_edge(self, prefix: Prefix) -> list[Prefix]:
        rest = list[Prefix]()
        while prefix not in self.ends:
            longer = {page for page in self.pages if page[: len(prefix)] == prefix} - {prefix}
            prefix = min(longer, key=len)
            rest.append(prefix)
        return rest

    def insert(self, tokens: Sequence[int], page_ids: Sequence[int], inserted: int) -> int:
        cached, prefixes = self.match(tokens), self.prefixes(tokens)
        for prefix, page_id in zip(prefixes, page_ids, strict=False):
            self.pages.setdefault(prefix, Page(page_id, (self.now, 2), (self.now, 2)))
        self.ends |= set(prefixes[-1:])
        for at, prefix in enumerate(prefixes):
            end = next(end for end in prefixes[at:] if end in self.ends)
            self.pages[prefix].hit_count += len(end) > inserted * self.page_size
        return len(cached)

    def evict(self, num_pages: int) -> list[int]:
        evicted: list[int] = []
        while len(evicted) < num_pages:
            inner = {prefix[: -self.page_size] for prefix in self.pages}
            leaves = set(self.pages) - inner - set(self.lock_counts())
            if not leaves:
                break
            leaf = min(leaves, key=lambda prefix: self.order(self.pages[prefix]))
            *above, _ = self.prefixes(leaf)
            start = max((len(prefix) for prefix in above if prefix in self.ends), default=0)
            gone = [prefix for prefix in self.prefixes(leaf) if len(prefix) > start]
            evicted += [self.pages.pop(prefix).page_id for prefix in gone]
            self.ends.remove(leaf)
        return evicted


TEXTS = ["".join(letters) for most in range(6) for letters in product("ABC", repeat=most)]


class AnyUse(RuleBasedStateMachine):
    """A cache and a model of it are used alike; whatever is asked, they agree."""

    texts = st.sampled_from(TEXTS)  # drawn evenly, so that trees get large and share a lot
    tails = st.integers(0, 15)

    @initialize(
        page_size=st.sampled_from([1, 2, 4, 16]),
        policy=st.sampled_from(sorted(ORDERS)),
        first=st.lists(texts, min_size=3, max_size=9),
        split_counts=st.sampled_from(["both", "neither"]),
    )
    def start(self, page_size: int, policy: str, first: list[str], split_counts: str) -> None:
        self.cache = TREES[split_counts](page_size, policy)
        self.model = PrefixDict(page_size, policy, split_counts)
        self.held: list[TreeNode] = []  # in the order of model.locks
        self.fresh = count(1)
        for text in first:
            self.insert(text, 0, lock=False, inserted=0)

    @rule(text=texts, tail=tails, lock=st.booleans())
    def match(self, text: str, tail: int, lock: bool) -> None:
        tokens = tokens_of(text, self.cache.page_size, tail)
        cached = self.model.match(tokens)
        match = self.cache.match_prefix(tokens)
        assert match.pages == [self.model.pages[prefix].page_id for prefix in cached]
        assert path_of(match.node) == (cached[-1] if cached else ())
        if lock:
            self.lock_node(match.node)

    @rule(text=texts, tail=tails, lock=st.booleans(), inserted=st.integers(0, 3))
    def insert(self, text: str, tail: int, lock: bool, inserted: int) -> None:
        """Some of it by a request that has inserted its first pages before."""
        tokens = tokens_of(text, self.cache.page_size, tail)
        page_ids = [next(self.fresh) for _ in range(len(text) + 1)]
        insertion = self.cache.insert(tokens, page_ids, inserted)
        assert insertion.num_cached_pages == self.model.insert(tokens, page_ids, inserted)
        assert path_of(insertion.node) == tuple(tokens[: len(text) * self.cache.page_size])
        if lock:
            self.lock_node(insertion.node)

    def lock_node(self, node: TreeNode) -> None:
        self.cache.inc_lock_ref(node)
        self.held.append(node)
        self.model.locks.append(path_of(node))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        self.cache.dec_lock_ref(self.held.pop(index))
        del self.model.locks[index]

    @rule(num_pages=st.sampled_from([1, 1, 1, 2, 5, 99, 0]))
    def evict(self, num_pages: int) -> None:
        assert self.cache.evict(num_pages) == self.model.evict(num_pages)

    @precondition(lambda self: self.model.now > 30)
    @invariant()
    def the_tree_is_the_dictionary(self) -> None:
        found = contents(self.cache)
        assert len(found) == len(self.model.pages), "a prefix is in the tree once"
        counts = self.model.lock_counts()
        for prefix, page_id, lock_ref in found:
            assert page_id == self.model.pages[prefix].page_id
            assert lock_ref == counts[prefix]

        assert self.cache.protected_size == len(counts)
        assert self.cache.evictable_size == len(set(self.model.pages) - set(counts))
        size = self.cache.evictable_size + self.cache.protected_size
        assert size == len(self.model.pages)
        for node in nodes_below(self.cache.root_node):
            assert len(node.tokens) == len(node.pages) * self.cache.page_size > 0


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(max_examples=many(60, 400), stateful_step_count=40)

# -- what it costs ---------------------------------------------------------------------------------


class Counted(tuple[int, ...]):
    """Tokens that count how often they were sliced, and how many tokens that copied."""

    slices = copied = 0

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        Counted.slices += 1
        Counted.copied += len(part)
        return Counted(part)


@given(shared=st.integers(0, 4096), page_size=st.sampled_from([1, 2, 4, 16]), rest=st.booleans())
def test_a_match_reads_what_is_shared_however_long_the_edge(
    shared: int, page_size: int, rest: bool
) -> None:
    pages = list(range(4096 // page_size))
    node = TreeNode(None, Counted([1] * 4096), pages, page_size, 0, 0)
    Counted.slices, Counted.copied = 0, 0
    assert node.shared_pages([1] * shared + [2] * (4096 * rest), 0) == shared // page_size
    assert Counted.copied <= 5 * shared + 8 * page_size
    assert Counted.slices <= 4 * 12, "a few for every time that 4096 can be halved"


def test_an_eviction_looks_at_what_it_evicts_and_what_was_used_not_at_the_tree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = []
    lru = POLICIES["lru"]
    monkeypatch.setitem(POLICIES, "lru", lambda node: looks.append(node) or lru(node))
    cache = RadixCache()
    for token in range(1000):
        cache.insert([token], [token])
    looks.clear()
    assert cache.evict(5) == [0, 1, 2, 3, 4]
    assert len(looks) == 5
    for token in (5, 6, 7):
        cache.match_prefix([token])
    assert cache.evict(5) == [8, 9, 10, 11, 12]
    assert len(looks) == 5 + 3 * 2 + 5


def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    cache = RadixCache()
    node = cache.insert([1, 2], [1, 2]).node
    with pytest.raises(ValueError, match="3 whole pages of tokens came with 2 page ids"):
        cache.insert([7, 8, 9], [3, 4])
    with pytest.raises(ValueError, match="lock_ref is 0"):
        cache.dec_lock_ref(node)
    assert cache.evict(1) == [1, 2]
    with pytest.raises(ValueError, match="not in the tree"):
        cache.inc_lock_ref(node)
    assert (cache.evictable_size, cache.protected_size) == (0, 0)


# -- page_allocator: pages of tokens, each with one owner ------------------------------------------


@given(st.integers(1, 8), st.integers(0, 200))
def test_pages_for_is_the_least_that_holds_them(size: int, tokens: int) -> None:
    need = PageAllocator(1, size).pages_for(tokens)
    assert need * size >= tokens > (need - 1) * size


def test_nothing_is_handed_out_while_its_lease_is_in_use() -> None:
    allocator, lease = PageAllocator(2), Lease(1, "a")
    allocator.alloc(lease, 1)
    assert lease.pages == [1], "never page 0"
    allocator.free(lease.pages)
    with pytest.raises(OwnershipError, match="page 1 was handed out"):
        allocator.alloc(Lease(2, "b"), 1)
    table = ReqToTokenPool(1)
    table.free(table.alloc("a"))
    with pytest.raises(OwnershipError, match="row 1 was handed out"):
        table.alloc("b")


@pytest.mark.parametrize(("rule", "taken"), [("lease", 2), ("deferred", 1), ("at_once", 1)])
def test_with_three_steps_in_flight_deferred_overlooks_one(rule: str, taken: int) -> None:
    """The newest batch does not name the request, the one before does: its row goes back early."""
    config = SchedulerConfig(free_rule=rule, run_ahead=True, max_running_requests=3)
    scheduler = Scheduler(config)
    stops = Request("a", [1, 2], SamplingParams(stop_token_ids=frozenset({9})))
    scheduler.receive([stops])
    first, second = scheduler.next_batch(), scheduler.next_batch()
    scheduler.receive([Request("b", [3, 4])])
    third = scheduler.next_batch()
    assert first and second and third and (second.rids, third.rids) == (("a",), ("b",))
    scheduler.process(first, Result([9]))
    assert scheduler.table.size - scheduler.table.available_size == taken
    assert first.leases[0].last_step == 2 > scheduler.leases.returned_step
