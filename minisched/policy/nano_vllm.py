"""nano-vllm's answers, where they differ from SGLang's (``sglang.py``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ..core import Request
from ..memory import BlockPool
from ..memory.block_pool import Block
from .mini_sglang import Rest
from .prefill_adder import PrefillAdder
from .rules import Deliberate, Rules

# -- The answers, in words, and those of the original that are not taken on purpose ----------------

RULES = Rules(
    ask_again="every_step",
    reserves="prompt",
    budget_counts="tokens",
    chunk_ends="anywhere",
    who_is_cut="first",
    too_many_tokens="refused",
    victim="newest",
    retracted_waits="old_place",
    prefix_cache="blocks",
    block_line="one_line",
    output_pages="running",
    evicts="lacking",
    waiting_prefixes="stale",
)
DELIBERATE: Mapping[str, Deliberate] = {}


class Prompt(Rest):
    """Reserve nothing: a request needs pages for its prompt (``block_manager.py:can_allocate``).

    It takes the pages of its whole prompt, even if this step computes only a part.
    """

    def kept_for(self, adder: PrefillAdder, req: Request) -> float:
        """Return 0: running requests have nothing reserved."""
        return 0

    def total_tokens(self, adder: PrefillAdder, req: Request, extend_len: int) -> int:
        """Return the tokens of the prompt's pages."""
        return adder.ceil_paged_tokens(extend_len)

    def fits(self, adder: PrefillAdder, req: Request, extend_len: int, to_lock: int) -> bool:
        """Return whether these pages are available now."""
        return self.total_tokens(adder, req, extend_len) <= adder.cur_rem_tokens - to_lock

    def charge(self, adder: PrefillAdder, req: Request, extend_len: int) -> None:
        """Take the pages of the whole prompt (``block_manager.py:allocate``).

        They may be evicted from the cache, so a later prompt of this batch does not find them.
        """
        assert req.lease is not None
        adder.leases.reserve(req.lease, req.device_len)


def newest(running: Iterable[Request]) -> Request:
    """Return the request that began to decode last."""
    return list(running)[-1]


class OneLine(BlockPool):
    """A block pool with one page a hash and one free queue (``engine/block_manager.py``).

    Of pages with the same tokens only the newest is found. A page without a hash is reused after
    all that were released before it.
    """

    def add_hash(self, block_hash: bytes, block: Block) -> None:
        """Let a block be found by its hash, and no other block."""
        self.cached_block_hash_to_block.setdefault(block_hash, {}).clear()
        super().add_hash(block_hash, block)

    def retain(self, pages: Sequence[int]) -> Sequence[int]:
        """Queue unhashed pages of a released lease, the last first; return none to be freed."""
        for page in reversed(pages):
            self.blocks[page] = self.free_block_queue[page] = Block(page, None)
        self._mark("block add", [self.blocks[page] for page in pages])
        return ()
