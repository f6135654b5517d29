"""Grammars of outputs: a regex, as a mask over the tokens that may come next.

The regex becomes an automaton over bytes (``regex.py``), and a request has a state of it. A token
has to be a byte, as in the hash model: no grammar over the tokens of a real model's tokenizer.
"""

from __future__ import annotations

from ..core import SamplingParams
from ..core.sampling import Grammar, shown
from ..models.base import Tokenizer
from .regex import TokenGrammar, build


def compile_grammar(
    params: SamplingParams, vocab_size: int, eos_ids: frozenset[int], tokenizer: Tokenizer | None
) -> Grammar:
    """Compile the grammar of a request that has one. Requests with one regex share the automaton.

    Raises:
        ValueError: it can't be compiled, or no token can satisfy it; one sentence with the reason.
    """
    regex = params.regex
    assert regex is not None, "only a request with a grammar needs one compiled"
    try:
        regex.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"regex {shown(regex)} holds half a character, which is no text."
        ) from error
    if tokenizer is not None:
        raise ValueError(
            "regex needs a model with a token for each byte, but this one has a tokenizer; use "
            "the model hash."
        )
    known = frozenset(token for token in eos_ids if token < vocab_size)
    return TokenGrammar(build(regex, vocab_size, known))
