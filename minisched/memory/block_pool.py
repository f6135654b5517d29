"""The prefix cache by block hash: a map from a page's tokens, and all before them, to the page."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from ..trace import NullRecorder, Recorder
from .radix_cache import Insertion, Match


@dataclass(eq=False, slots=True)
class Block:
    """A cached page (vLLM ``v1/core/kv_cache_utils.py:KVCacheBlock``)."""

    page: int
    block_hash: bytes | None  # of its tokens and all before them; None: it can't be found
    ref_cnt: int = 0  # leases that hold it


Chain = tuple[Block, ...]  # the blocks of a prefix, in order


class BlockPool:
    """vLLM's prefix cache (``v1/core/block_pool.py``), for the pages that are in it.

    A page is found by a hash of its own tokens and of the hash before it, so no tree is needed: a
    prefix is cached as far as its hashes are. Several pages may hold the same tokens, if two
    requests computed them at the same time; the first page is found.

    ``ref_cnt`` counts the leases that use a page. An unused page waits in the free queue and can
    still be found; pages are evicted from the front. A lease releases its last page first, so the
    end of a prefix is evicted before its beginning. vLLM keeps pages without a hash in the front of
    the same queue. Here they belong to the allocator, which is asked first.

    Raises:
        ValueError: ``page_size`` is below 1.
    """

    def __init__(self, page_size: int = 1, recorder: Recorder | None = None) -> None:
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}; it must be at least 1")
        self.page_size = page_size
        self.recorder = recorder or NullRecorder()
        self.blocks: dict[int, Block] = {}  # by page
        self.cached_block_hash_to_block: dict[bytes, dict[int, Block]] = {}  # the first is found
        self.free_block_queue: OrderedDict[int, Block] = OrderedDict()  # the first goes first

    @property
    def evictable_size(self) -> int:
        """Return the number of unused pages."""
        return len(self.free_block_queue)

    @property
    def protected_size(self) -> int:
        """Return the number of pages in use."""
        return len(self.blocks) - len(self.free_block_queue)

    def match_prefix(self, tokens: Sequence[int]) -> Match:
        """Return the longest cached prefix of ``tokens``, in whole pages. It does not count as use.

        The caller leaves out a prompt's last token, which must be computed to sample from it.
        """
        found: list[Block] = []
        for block_hash in self.hashes(tokens):
            same = self.cached_block_hash_to_block.get(block_hash)
            if same is None:
                break
            found.append(next(iter(same.values())))
        return Match(tuple(found), [block.page for block in found])

    def insert(self, tokens: Sequence[int], pages: Sequence[int]) -> Insertion:
        """Add the pages of ``tokens`` that are not in the pool, duplicates included.

        ``pages`` lists the page ids in order; a last one that the tokens fill only in part is left
        out. New pages are unused until they are locked.

        Raises:
            ValueError: there are fewer page ids than whole pages of tokens.
        """
        num_pages, size = len(tokens) // self.page_size, self.page_size
        if len(pages) < num_pages:
            raise ValueError(f"{num_pages} whole pages of tokens came with {len(pages)} page ids")
        chain = [self.blocks[page] for page in pages[:num_pages] if page in self.blocks]
        first = len(chain)
        parent = (chain[-1].block_hash if chain else None) or b""
        for page, block_hash in zip(
            pages[first:num_pages], self.hashes(tokens[first * size :], parent), strict=True
        ):
            block = self.blocks[page] = self.free_block_queue[page] = Block(page, block_hash)
            self.add_hash(block_hash, block)
            chain.append(block)
        self._mark("block add", chain[first:])
        return Insertion(tuple(chain), first)

    def add_hash(self, block_hash: bytes, block: Block) -> None:
        """Let a block be found by its hash, after older blocks with the same tokens."""
        self.cached_block_hash_to_block.setdefault(block_hash, {})[block.page] = block

    def inc_lock_ref(self, node: Chain) -> None:
        """Use the blocks of a prefix, so that none is evicted (vLLM ``touch``).

        Raises:
            ValueError: one of them was evicted.
        """
        for block in node:
            if self.blocks.get(block.page) is not block:
                raise ValueError(f"page {block.page} was evicted before it was locked")
            if not block.ref_cnt:
                del self.free_block_queue[block.page]
            block.ref_cnt += 1
        self._mark("block lock", node, 1)

    def dec_lock_ref(self, node: Chain) -> None:
        """Release the blocks of a prefix, the last first; a block without a hash is evicted first.

        Raises:
            ValueError: one of them is not in use.
        """
        for block in reversed(node):
            if not block.ref_cnt:
                raise ValueError(f"page {block.page} is released, but its ref_cnt is 0")
            block.ref_cnt -= 1
            if not block.ref_cnt:
                self.free_block_queue[block.page] = block
                if block.block_hash is None:
                    self.free_block_queue.move_to_end(block.page, last=False)
        self._mark("block lock", node, -1)

    def move_lock(self, node: Chain, to: Chain) -> None:
        """Lock the blocks by which a prefix has grown, too."""
        self.inc_lock_ref(to[len(node) :])

    def num_pages_locked(self, node: Chain, times: int) -> int:
        """Return the number of a prefix's pages that exactly ``times`` leases use."""
        return sum(block.ref_cnt == times for block in node)

    def retain(self, pages: Sequence[int]) -> Sequence[int]:
        """Return which unhashed pages of a released lease are freed: all (vLLM)."""
        return pages

    def evict(self, num_pages: int) -> list[int]:
        """Evict ``num_pages`` pages, or all unused ones if those are fewer; return their ids."""
        evicted: list[Block] = []
        while len(evicted) < num_pages and self.free_block_queue:
            _, block = self.free_block_queue.popitem(last=False)
            self._drop_hash(block)
            del self.blocks[block.page]
            evicted.append(block)
        self._mark("block evict", evicted)
        return [block.page for block in evicted]

    def forget(self, node: Sequence[Block]) -> None:
        """Drop the hashes of these blocks, so they can't be found; leases that use one keep it."""
        for block in node:
            self._drop_hash(block)
            if block.page in self.free_block_queue:
                self.free_block_queue.move_to_end(block.page, last=False)
        self._mark("block forget", node)

    def hashes(self, tokens: Sequence[int], parent: bytes = b"") -> Iterator[bytes]:
        """Yield the hash of each whole page of ``tokens``; ``parent`` is the hash before them."""
        size = self.page_size
        for at in range(0, len(tokens) // size * size, size):
            page = " ".join(map(str, tokens[at : at + size]))
            parent = sha256(parent + page.encode()).digest()
            yield parent

    def _drop_hash(self, block: Block) -> None:
        if block.block_hash is not None:
            same = self.cached_block_hash_to_block.get(block.block_hash, {})
            if same.pop(block.page, None) and not same:
                del self.cached_block_hash_to_block[block.block_hash]
            block.block_hash = None

    def _mark(self, name: str, blocks: Sequence[Block], delta: int | None = None) -> None:
        if self.recorder.is_on and blocks:
            more = {} if delta is None else {"delta": delta}
            self.recorder.mark(name, pages=tuple(block.page for block in blocks), **more)
