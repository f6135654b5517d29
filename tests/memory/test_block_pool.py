"""The block pool, held against a list of pages that knows no hashes and counts no references."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.memory.block_pool import BlockPool, Chain
from tests.support import many

PAGE = 2
prefixes = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)  # a letter for each page
moves = st.lists(
    st.tuples(st.sampled_from(["add", "hold", "drop", "evict", "forget"]), prefixes,
              st.integers(0, 5)), max_size=30,
)  # fmt: skip


def tokens_of(letters: tuple[int, ...]) -> list[int]:
    return [token for letter in letters for token in (7, letter)]


@dataclass
class Holder:
    """Somebody who uses the pages of a prefix: letters, page ids, and what the pool calls it."""

    letters: tuple[int, ...]
    pages: list[int]
    chain: Chain


@dataclass
class Pages:
    """Every cached page with the prefix that it ends (None: forgotten), and who holds what."""

    prefix: dict[int, tuple[int, ...] | None] = field(default_factory=dict)  # by age
    idle: list[int] = field(default_factory=list)  # the first is evicted first
    holders: list[Holder] = field(default_factory=list)

    def find(self, letters: tuple[int, ...]) -> list[int]:
        found: list[int] = []
        for n in range(1, len(letters) + 1):
            same = [page for page, prefix in self.prefix.items() if prefix == letters[:n]]
            if not same:
                break
            found.append(same[0])
        return found

    def is_used(self, page: int) -> bool:
        return any(page in holder.pages for holder in self.holders)


@given(moves)
@settings(max_examples=many(150, 3000))
def test_it_does_what_a_list_of_pages_does(moves: list[tuple[str, tuple[int, ...], int]]) -> None:
    pool, model, new = BlockPool(PAGE), Pages(), 0
    for move, letters, at in moves:
        holder = model.holders[at % len(model.holders)] if model.holders else None
        if move == "add":  # begin with what is found, and compute the rest: copies are made too
            match = pool.match_prefix(tokens_of(letters[: at % (len(letters) + 1)]))
            assert match.pages == model.find(letters[: at % (len(letters) + 1)])
            pages = [*match.pages, *range(new + 1, new + 1 + len(letters) - len(match.pages))]
            new += len(letters) - len(match.pages)
            pool.inc_lock_ref(match.node)
            end = pool.insert([*tokens_of(letters), 7], pages)
            assert end.num_cached_pages == len(match.pages)
            pool.move_lock(match.node, end.node)
            for n, page in enumerate(pages, 1):
                model.prefix.setdefault(page, letters[:n])
            model.idle = [page for page in model.idle if page not in pages]
            model.holders.append(Holder(letters, pages, end.node))
        elif move == "hold":
            match = pool.match_prefix(tokens_of(letters))
            assert match.pages == model.find(letters)
            assert pool.num_pages_locked(match.node, 0) == len({*match.pages} & {*model.idle})
            pool.inc_lock_ref(match.node)
            model.idle = [page for page in model.idle if page not in match.pages]
            model.holders.append(Holder(letters, match.pages, match.node))
        elif move == "drop" and holder:
            model.holders.remove(holder)
            pool.dec_lock_ref(holder.chain)
            for page in reversed(holder.pages):
                if not model.is_used(page):
                    front = 0 if model.prefix[page] is None else len(model.idle)
                    model.idle.insert(front, page)
        elif move == "evict":
            gone, model.idle = model.idle[:at], model.idle[at:]
            assert pool.evict(at) == gone
            for page in gone:
                del model.prefix[page]
        elif move == "forget" and holder and all(map(model.prefix.get, holder.pages)):
            pool.forget(holder.chain[-1:])
            model.prefix |= dict.fromkeys(holder.pages[-1:])
            model.holders = [other for other in model.holders if other is not holder]
            pool.dec_lock_ref(holder.chain)
            for page in reversed(holder.pages):
                if not model.is_used(page):
                    front = 0 if model.prefix[page] is None else len(model.idle)
                    model.idle.insert(front, page)
        assert list(pool.free_block_queue) == model.idle
        assert (pool.evictable_size, len(pool.blocks)) == (len(model.idle), len(model.prefix))
        assert pool.protected_size == len(model.prefix) - len(model.idle)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="page_size is 0; it must be at least 1"):
        BlockPool(0)
    pool = BlockPool(PAGE)
    with pytest.raises(ValueError, match="2 whole pages of tokens came with 1 page ids"):
        pool.insert([1, 2, 3, 4], [1])
    node = pool.insert([1, 2, 3, 4], [1, 2]).node
    with pytest.raises(ValueError, match="page 2 is released, but its ref_cnt is 0"):
        pool.dec_lock_ref(node)
    assert pool.evict(9) == [1, 2]
    with pytest.raises(ValueError, match="page 1 was evicted before it was locked"):
        pool.inc_lock_ref(node)


def test_a_page_is_found_by_all_that_is_before_it() -> None:
    pool = BlockPool(PAGE)
    pool.insert([1, 2, 3, 4], [1, 2])
    assert pool.match_prefix([9, 2, 3, 4]).pages == []
    assert pool.match_prefix([1, 2, 3, 4, 5]).pages == [1, 2]
    assert pool.match_prefix([1, 2, 3]).pages == [1]
    assert pool.match_prefix([12, 3, 4]).pages == [], "12 3 is not 1 23"
