"""Grammars of outputs: a regex or a JSON schema, as a mask over the tokens that may come next.

``regex.py`` reads every regex, so a regex has one meaning. Where tokens are bytes, it becomes an
automaton there, and a request has a state of it. Otherwise it is written out for a library, which
has JSON schemas as well (``llguidance_grammar.py``).
"""

from __future__ import annotations

from ..core import SamplingParams
from ..core.sampling import Grammar, shown
from ..devices.registry import load
from ..models.base import Tokenizer
from .regex import TokenGrammar, build

BACKEND = ("minisched.grammar.llguidance_grammar", "LLGuidanceGrammar", "grammar")


def compile_grammar(
    params: SamplingParams, vocab_size: int, eos_ids: frozenset[int], tokenizer: Tokenizer | None
) -> Grammar:
    """The grammar of one request that has one, at its start.

    Where the model has no tokenizer a token is a byte, and a regex becomes an automaton of our own.
    llguidance does anything else. Requests with the same regex share the automaton.

    Raises:
        ValueError: it can't be compiled, or no token can satisfy it; one sentence with the reason.
    """
    kind, text = ("regex", params.regex) if params.json_schema is None else (
        "json_schema", params.json_schema)  # fmt: skip
    assert text is not None, "who has no grammar needs none compiled"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{kind} {shown(text)} holds half a character, which is no text."
        ) from error
    eos_ids = frozenset(token for token in eos_ids if token < vocab_size)
    if tokenizer is None and kind == "regex":
        return TokenGrammar(build(text, vocab_size, eos_ids))
    if tokenizer is None and vocab_size < 256:
        raise ValueError(
            f"json_schema needs a model with a tokenizer, or with all 256 bytes; this one has "
            f"{vocab_size} tokens."
        )
    module, name, extra = BACKEND
    made: Grammar = load(module, name, extra, kind)(kind, text, vocab_size, eos_ids, tokenizer)
    return made
