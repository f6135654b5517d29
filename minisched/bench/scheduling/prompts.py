"""The prompts that a tree is filled with, and those that are then looked for in it."""

from __future__ import annotations

import random
from array import array
from functools import cache

SHARED, OWN = 256, 768  # tokens of a prompt: one of a few beginnings, and what is its own
BEGINNINGS = 8
MATCHES, INSERTIONS = 32, 8  # timed calls; the tree grows by that many prompts meanwhile
VOCAB_SIZE = 50_000


@cache
def prompts(num_tokens: int) -> list[list[int]]:
    """Prompts that together make a tree of about so many tokens.

    There are two at least, which share their beginning: so a match passes two nodes in any tree.
    """
    draw = random.Random(num_tokens)
    return [
        beginnings()[number // 2 % BEGINNINGS] + draw.choices(range(VOCAB_SIZE), k=OWN)
        for number in range(max(2, num_tokens // OWN))
    ]


@cache
def beginnings() -> list[list[int]]:
    """What prompts share, as system prompts are shared."""
    draw = random.Random(0)
    return [draw.choices(range(VOCAB_SIZE), k=SHARED) for _ in range(BEGINNINGS)]


def cached_prompts(num_tokens: int, spread: bool) -> list[list[int]]:
    """One prompt of the tree again and again, or ``spread`` prompts from all over it.

    They are new integers: those of a client are never the tree's.
    """
    known = prompts(num_tokens)
    picked = (known[spread * number * len(known) // MATCHES] for number in range(MATCHES))
    return [array("i", tokens).tolist() for tokens in picked]


def new_prompts() -> list[list[int]]:
    """Prompts of which the tree has the beginning only."""
    draw = random.Random(1)
    own = (draw.choices(range(VOCAB_SIZE), k=OWN) for _ in range(INSERTIONS))
    return [array("i", [*beginnings()[0], *tokens]).tolist() for tokens in own]
