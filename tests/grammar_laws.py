"""What holds for every grammar, and how to walk through one by its masks."""

from __future__ import annotations

import random
from collections.abc import Callable

from minisched.core.grammar import Grammar


def allowed(grammar: Grammar) -> list[int]:
    """The tokens whose bit is set."""
    bits = int.from_bytes(grammar.fill_vocab_mask(), "little")
    return [token for token, bit in enumerate(f"{bits:b}"[::-1]) if bit == "1"]


def check_mask(
    grammar: Grammar, tokens: list[int], vocab_size: int, eos_ids: frozenset[int]
) -> None:
    """A bit is set exactly where ``accept_token`` takes the token, which can be taken back."""
    mask = grammar.fill_vocab_mask()
    assert len(mask) == -(-vocab_size // 32) * 4
    may_come = set(allowed(grammar))
    assert not grammar.is_terminated
    for token in tokens:
        taken = grammar.accept_token(token)
        assert taken == (token in may_come), token
        grammar.rollback(int(taken))
        assert grammar.fill_vocab_mask() == mask


def walk(
    grammar: Grammar, eos_ids: frozenset[int], rng: random.Random, max_tokens: int,
    look: Callable[[Grammar], None] = lambda grammar: None,
) -> tuple[list[int], bool]:  # fmt: skip
    """Random tokens that the masks allow; the text, and whether it came to its end."""
    text: list[int] = []
    masks = [grammar.fill_vocab_mask()]
    while len(text) < max_tokens:
        look(grammar)
        may_come = allowed(grammar)
        assert may_come, f"a dead end after {text}"
        token = rng.choice(may_come)
        assert grammar.accept_token(token)
        if token in eos_ids:
            assert not allowed(grammar) and grammar.is_terminated
            grammar.rollback(1)
            assert grammar.fill_vocab_mask() == masks[-1]
            return text, True
        text.append(token)
        assert grammar.is_terminated == (not set(allowed(grammar)) - eos_ids)
        masks.append(grammar.fill_vocab_mask())
        steps = rng.randrange(4)
        if steps < len(masks):  # go back, and the same way once more
            grammar.rollback(steps)
            assert grammar.fill_vocab_mask() == masks[len(masks) - 1 - steps]
            assert all(grammar.accept_token(token) for token in text[len(text) - steps :])
            assert grammar.fill_vocab_mask() == masks[-1]
        if grammar.is_terminated:
            return text, True
    return text, False
