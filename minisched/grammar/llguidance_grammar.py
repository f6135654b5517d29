"""A JSON schema or a regex over a model's own tokens, by the library llguidance.

It is one wheel of 8 MB without dependencies; xgrammar, which is as good, needs torch, transformers
and triton. With SmolLM2's 49152 tokens and the schema of a small object, llguidance 1.9.1 has the
vocabulary ready after 0.3 s (xgrammar 0.2.8: 2.1 s), the schema after 0.7 ms (33 ms), and a mask
after 0.003 to 1.1 ms (0.001 to 3.6 ms). Source: SGLang ``constrained/llguidance_backend.py``.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..core.sampling import shown
from ..models.base import Tokenizer
from .regex import BEYOND, BYTES, Part, parse

# -- What llguidance is given to compile, and what it complains of as one sentence -----------------

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""A token is allowed wherever the text can still be completed. By default the library forces the
tokenizer's own cut where the text is certain, and takes the name of a special token for it."""

NOTHING = r"[^\x00-\x{10ffff}]"  # a regex that no text matches
SPACES = {"whitespace_pattern": "[ ]?"}
"""Between the parts of JSON; otherwise a small model may fill its whole output with spaces."""


def to_lark(kind: str, text: str) -> str:
    """A regex or a JSON schema in the library's language.

    Raises:
        ValueError: it is no regex (``regex.py``), or the schema is no JSON.
    """
    if kind == "regex":
        return f"{OPTIONS}start: /{written(parse(text))}/"
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(refusal(kind, text, f"it is no JSON, {error}")) from error
    if schema is True:
        schema = {}
    if isinstance(schema, dict):
        schema = {"x-guidance": SPACES, **schema}
    return f"{OPTIONS}start: %json {json.dumps(schema)}"


def written(part: Part) -> str:
    """A part as Rust's regexes have it, which read more into some signs than ``regex.py`` does.

    So nothing is left of how it was written: every character is an escape.
    """
    match part:
        case ("chars", codes):
            if codes >= BEYOND:
                return f"[^{ranges(BYTES - codes)}]" if codes < BYTES else "(?s:.)"
            return f"[{ranges(codes)}]"
        case ("beyond", char):
            return rf"\x{{{ord(char):x}}}"
        case ("repeat", body, least, most):
            return f"(?:{written(body)}){{{least},{'' if most is None else most}}}"
        case ("then", parts):
            return f"(?:{''.join(map(written, parts))})"
        case ("either", options):
            return f"(?:{'|'.join(sorted(map(written, options)))})" if options else NOTHING
    raise AssertionError(part)


def ranges(codes: frozenset[int]) -> str:
    """Characters of ASCII as the inside of a class: ``\x30-\x39\x5f-\x5f``."""
    runs = [[code for _, code in run] for _, run in groupby(
        enumerate(sorted(codes)), lambda item: item[1] - item[0])]  # fmt: skip
    return "".join(rf"\x{run[0]:02x}-\x{run[-1]:02x}" for run in runs)


def refusal(kind: str, text: str, error: str) -> str:
    """The sentence for a grammar that is refused; ``error`` is the library's, or our own."""
    lines = error.splitlines() or [""]
    regex_error = next((line for line in lines if line.startswith("error: ")), None)
    why = (regex_error or lines[0]).removeprefix("error: ")
    why = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", why)
    impossible, _, detail = why.partition(": ")
    if why in ("", "NoExtensionBias"):
        return f"no token can satisfy {kind} {shown(text)}."
    if impossible == "Unsatisfiable schema":
        return f"no token can satisfy {kind} {shown(text)}: {detail}."
    return f"{kind} {shown(text)} can't be compiled: {why.rstrip('.')}."


class TokenizerInfo(NamedTuple):
    """A vocabulary as the library wants it, and sets of tokens as the bits of a number."""

    tokens: LLTokenizer
    text: int  # tokens that may be part of a text
    end: int  # those that end it
    mask_len: int  # bytes


@lru_cache(maxsize=4)
def tokenizer_info(
    tokenizer: Tokenizer | None, vocab_size: int, eos_ids: frozenset[int]
) -> TokenizerInfo:
    """Made once for each model. Without a tokenizer a token is a byte.

    The model may have more tokens than its tokenizer: those are never allowed.

    Raises:
        ValueError: the library does not know this kind of tokenizer.
    """
    try:
        if tokenizer is None:
            tokens, num_text = LLTokenizer("byte"), 256
        else:
            tokens, num_text = LLTokenizer(tokenizer.to_json(), n_vocab=vocab_size), vocab_size
    except ValueError as error:
        why = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(f"llguidance can't read this model's tokenizer: {why}.") from error
    end = sum(1 << token for token in eos_ids)
    ends = end | sum(1 << token for token in tokens.eos_tokens)
    return TokenizerInfo(tokens, (1 << num_text) - 1 & ~ends, end, -(-vocab_size // 32) * 4)


class LLGuidanceGrammar:
    """A ``core.Grammar`` around the library's matcher, which is shown text tokens only.

    Dead ends are the library's affair; where it runs into one, or into a limit of its own, its
    mask lets everything pass and no token is accepted, so that the request ends with an error.

    Raises:
        ValueError: the grammar can't be compiled, or no token can satisfy it.
    """

    def __init__(
        self, kind: str, text: str, vocab_size: int, eos_ids: frozenset[int],
        tokenizer: Tokenizer | None,
    ) -> None:  # fmt: skip
        self.info = tokenizer_info(tokenizer, vocab_size, eos_ids)
        grammar = LLMatcher.grammar_from_lark(to_lark(kind, text))
        limits = LLParserLimits(verbose_errors=False)
        self._matcher = LLMatcher(self.info.tokens, grammar, log_level=0, limits=limits)
        self._num_tokens = 0  # of the text
        self._is_over = False  # an end-of-text token has come
        self._known: int | None = None  # what is allowed now, once it has been asked for
        if self._allowed == 0 or self._matcher.is_error():
            raise ValueError(refusal(kind, text, self._matcher.get_error()))

    @property
    def _allowed(self) -> int:
        """The tokens that may come next, as bits."""
        if self._is_over:
            return 0
        if self._known is None:
            text = int.from_bytes(self._matcher.compute_bitmask(), "little") & self.info.text
            if self._matcher.is_error():
                self._known = self.info.text | self.info.end
            else:
                self._known = text | (self.info.end if self._matcher.is_accepting() else 0)
        return self._known

    @property
    def is_terminated(self) -> bool:
        """Return whether the accepted tokens allow no more text."""
        return self._is_over or (self._num_tokens > 0 and not self._allowed & self.info.text)

    def accept_token(self, token: int) -> bool:
        """Go on by one token; return False, and stay, if it is not allowed."""
        if not self._allowed >> token & 1 or self._matcher.is_error():
            return False
        if self.info.end >> token & 1:
            self._is_over = True
        else:
            self._matcher.consume_token(token)
            self._num_tokens += 1
        self._known = None
        return True

    def fill_vocab_mask(self) -> bytes:
        """The tokens allowed next; none, once an end-of-text token has come."""
        return self._allowed.to_bytes(self.info.mask_len, "little")

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        if num_tokens and self._is_over:
            self._is_over = False
            num_tokens -= 1
        num_tokens = min(num_tokens, self._num_tokens)
        self._matcher.rollback(num_tokens)
        self._num_tokens -= num_tokens
        self._known = None
