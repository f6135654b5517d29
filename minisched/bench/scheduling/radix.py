"""Time of a match and of an insertion, as the tree grows: ours beside nano-vllm's hashed blocks."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...memory.radix_cache import RadixCache
from ..rows import Measure, SideBySide
from .engines import PAGE
from .nano_vllm import NanoVllm
from .prompts import OWN, SHARED, cached_prompts, new_prompts, prompts

OTHER = "nano-vllm"
PAGE_SIZES = (1, 16, PAGE)
TREE_SIZES = (1_000, 10_000, 100_000, 1_000_000)  # tokens
SPARE_BLOCKS = 256


def radix_cases(nano: NanoVllm | None, reason: str) -> SideBySide:
    """Match and insertion for each size of page and tree; nano-vllm's at its only page size."""
    ours: dict[str, Measure] = {}
    theirs: dict[str, Measure | None] = {}
    for page in PAGE_SIZES:
        for size in TREE_SIZES:
            ours[named("match", page, size)] = partial(match_us, page, size)
            ours[named("insert", page, size)] = partial(insert_us, page, size)
        ours[scattered(page)] = partial(match_us, page, TREE_SIZES[-1], spread=True)
    for size in TREE_SIZES:
        theirs[named("match", PAGE, size)] = partial(hash_match_us, nano, size) if nano else None
        theirs[named("insert", PAGE, size)] = partial(hash_insert_us, nano, size) if nano else None
    largest = partial(hash_match_us, nano, TREE_SIZES[-1], spread=True) if nano else None
    theirs[scattered(PAGE)] = largest
    growth = [
        (named(what, page, TREE_SIZES[-1]), named(what, page, TREE_SIZES[0]))
        for page in PAGE_SIZES
        for what in ("match", "insert")
    ]
    return SideBySide(OTHER, ours, theirs, growth, reason=reason)


def named(what: str, page_size: int, num_tokens: int) -> str:
    """The name of a case."""
    return f"{what} {SHARED + OWN:,} tokens, page {page_size}, tree of {num_tokens:,}"


def scattered(page_size: int) -> str:
    """The name of a case where the processor's caches are no help."""
    return f"{named('match', page_size, TREE_SIZES[-1])}, all over it"


# -- ours --------------------------------------------------------------------------------------


def match_us(page_size: int, num_tokens: int, spread: bool = False) -> float:
    """Find the pages of a cached prompt, lock them and let them go."""
    tree = our_tree(page_size, num_tokens)

    def find(tokens: list[int]) -> None:
        node = tree.match_prefix(tokens).node
        tree.inc_lock_ref(node)
        tree.dec_lock_ref(node)

    return microseconds(find, cached_prompts(num_tokens, spread))


def insert_us(page_size: int, num_tokens: int) -> float:
    """Give the tree the pages of a prompt whose beginning it has."""
    tree = our_tree(page_size, num_tokens)
    first, each = tree.total_size, (SHARED + OWN) // page_size
    offers = [
        (tokens, range(first + number * each, first + (number + 1) * each))
        for number, tokens in enumerate(new_prompts())
    ]
    return microseconds(lambda offer: tree.insert(*offer), offers)


def our_tree(page_size: int, num_tokens: int) -> RadixCache:
    """A tree of about so many tokens."""
    tree = RadixCache(page_size)
    for tokens in prompts(num_tokens):
        first = tree.total_size
        tree.insert(tokens, range(first, first + len(tokens) // page_size))
    return tree


# -- nano-vllm's -------------------------------------------------------------------------------


def hash_match_us(nano: NanoVllm, num_tokens: int, spread: bool = False) -> float:
    """Find the blocks of a cached prompt, take them and let them go.

    Its last block is never looked for, so each prompt gets one more token, and so a fifth block.
    """
    blocks = their_blocks(nano, num_tokens)

    def find(seq: Any) -> None:
        blocks.allocate(seq, blocks.can_allocate(seq))
        blocks.deallocate(seq)

    seqs = [nano.sequence([*tokens, 0], 1) for tokens in cached_prompts(num_tokens, spread)]
    return microseconds(find, seqs)


def hash_insert_us(nano: NanoVllm, num_tokens: int) -> float:
    """Register the blocks of a prompt whose beginning is known."""
    blocks = their_blocks(nano, num_tokens)
    seqs = [nano.sequence(tokens, 1) for tokens in new_prompts()]
    for seq in seqs:
        hold(blocks, seq)
    return microseconds(blocks.hash_blocks, seqs)


def their_blocks(nano: NanoVllm, num_tokens: int) -> Any:
    """A block manager that knows about so many tokens, none of them in use."""
    known = prompts(num_tokens)
    num_blocks = len(known) * (SHARED + OWN) // PAGE + SPARE_BLOCKS
    blocks = nano.BlockManager(num_blocks, PAGE)
    for tokens in known:
        seq = nano.sequence(tokens, 1)
        hold(blocks, seq)
        blocks.hash_blocks(seq)
        blocks.deallocate(seq)
    return blocks


def hold(blocks: Any, seq: Any) -> None:
    """Admit a whole prompt."""
    blocks.allocate(seq, blocks.can_allocate(seq))
    seq.num_scheduled_tokens = seq.num_tokens - seq.num_cached_tokens


def microseconds(call: Callable[[Any], object], arguments: Sequence[Any]) -> float:
    """The mean time of a call; the garbage collector stays on, as it does in a server."""
    gc.collect()
    start = time.perf_counter_ns()
    for argument in arguments:
        call(argument)
    return (time.perf_counter_ns() - start) / len(arguments) / 1000
