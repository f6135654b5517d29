"""The sampling options of a request, and the changes of its logits before a token is chosen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

from .fields import setting

# -- The kind of value that each field of a request must have: a client's JSON may hold anything ---

LONGEST = 60  # characters of a value that a sentence quotes


def wrong_type(item: Any, names: Sequence[str] = ()) -> str | None:
    """Return a sentence on the first field (of ``names``) with a value of a wrong kind, or None."""
    known = item.__dataclass_fields__
    for name in names or known:
        value, (kind, is_of_kind) = getattr(item, name), KINDS[known[name].type]
        if not is_of_kind(value):
            return f"{name} is {shown(value)}, but it must be {kind}."
    return None


def wrong_token(prompt: Sequence[Any]) -> str | None:
    """One sentence on the first thing in a prompt that is no token id, or None."""
    if set(map(type, prompt)) <= {int}:
        return None  # which is all that there usually is, and quickly seen
    for at, value in enumerate(prompt):
        if not is_whole(value):
            return f"prompt[{at}] is {shown(value)}, but a token id must be a whole number."
    return None


def shown(value: object) -> str:
    """Return a value as a sentence can quote it: one short line."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # for example of a number with thousands of digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def is_whole(value: object) -> bool:
    """Return whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_short(value: object) -> bool:
    """Return whether it is a whole number of at most 64 bits, such as a time in nanoseconds."""
    return is_whole(value) and -(2**63) <= cast(int, value) < 2**63


def is_number(value: object) -> bool:
    """Return whether it is a number, NaN included; each field has limits of its own."""
    return isinstance(value, float) or is_whole(value)


def is_text(value: object) -> bool:
    """Return whether it is a text with an encoding; JSON allows half of a surrogate pair."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


def is_list(value: object) -> bool:
    """Return whether it is a sequence, but no text."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "float": ("a number", is_number),
    "int": ("a whole number of at most 64 bits", is_short),
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "str": ("a text of at least one character", lambda value: is_text(value) and value != ""),
    "str | None": ("a text, or None", lambda value: value is None or is_text(value)),
    "tuple[str, ...]": (
        "a tuple of strings", lambda value: isinstance(value, tuple) and all(map(is_text, value)),
    ),
    "frozenset[int]": (
        "a set of whole numbers",
        lambda value: isinstance(value, Set) and all(map(is_whole, value)),
    ),
    "Mapping[int, float]": (
        "a mapping of token ids to numbers",
        lambda value: isinstance(value, Mapping) and all(map(is_whole, value))
        and all(map(is_number, value.values())),
    ),
    "Sequence[int]": ("a list of token ids", is_list),
}  # fmt: skip
"""By a field's type: what it must be, in words, and whether a value is that."""


# -- How one request wants its tokens chosen, and when it wants to stop ----------------------------

COLDEST = 1e-3  # a lower temperature is greedy but for rounding, and divides logits to infinity
HOTTEST = sys.float_info.max  # a whole number may be larger, and be no float
HIGHEST_PENALTY = 2.0
HIGHEST_BIAS = 100.0  # more than any logit; OpenAI's limit, as vLLM's


@dataclass(frozen=True)
class SamplingParams:
    """The sampling options of one request (SGLang ``sampling/sampling_params.py``).

    ``temperature`` 0 is greedy. ``top_k`` -1 keeps the whole vocabulary; ``top_p`` keeps the
    smallest set of tokens that together reach this probability. The tokens of a sampled request
    depend on ``seed``, the request and the position, never on the batch.

    These read the tokens before: ``frequency_penalty``, ``presence_penalty`` and
    ``repetition_penalty`` (1: none), a grammar (``regex``), and ``stop`` strings. ``logit_bias``
    adds to the logits of single tokens and reads nothing.

    ``return_logprob`` asks for the log-probability of every output token, and of the prompt's from
    ``logprob_start_len`` on (-1: none of them), with the ``top_logprobs_num`` most likely tokens at
    each position (``logprobs.py``). The first one of the prompt has none, as in SGLang. Such a
    request is never in a mixed batch.

    >>> SamplingParams(temperature=0.8, top_p=0.9, seed=7).is_greedy
    False
    >>> SamplingParams(top_p=2).problem()
    'top_p is 2, but it must be above 0 and at most 1.'
    """

    temperature: float = setting(0.0, "0 is greedy.")
    top_k: int = setting(-1, "Keep this many tokens; -1 keeps all.")
    top_p: float = setting(1.0, "Keep the tokens that make up this probability.")
    seed: int = setting(0, "Decides every draw, if temperature is above 0.")
    max_new_tokens: int = setting(32, "The most tokens that a request may produce.")
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    frequency_penalty: float = setting(
        0.0, "Taken off a logit, for each time that its token was output; -2 to 2."
    )
    presence_penalty: float = setting(
        0.0, "Taken off a logit once, if its token was output; -2 to 2."
    )
    repetition_penalty: float = setting(
        1.0, "Divides the logits of tokens in prompt and output; 1 is none, at most 2."
    )
    logit_bias: Mapping[int, float] = setting(dict, "TOKEN=VALUE, added to a logit; repeatable.")
    regex: str | None = setting(
        None, "The expression of the whole output, as in Python's re over ASCII."
    )
    stop: tuple[str, ...] = setting((), "A text that ends a request; repeatable.")
    return_logprob: bool = setting(False, "Return how likely each token was.")
    top_logprobs_num: int = setting(0, "With this many of the most likely tokens.")
    logprob_start_len: int = setting(-1, "From this token of the prompt on; -1 is none of it.")

    @property
    def is_greedy(self) -> bool:
        """Return whether the most likely token is always taken."""
        return self.temperature <= 0.0 or self.top_k == 1

    @cached_property
    def has_penalties(self) -> bool:
        """Return whether the tokens before change the logits."""
        return (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def has_grammar(self) -> bool:
        """Return whether the output has to follow a grammar."""
        return self.regex is not None

    def problem(self) -> str | None:
        """Return a sentence on the first wrong option, or None."""
        if problem := wrong_type(self):
            return problem
        if self.max_new_tokens <= 0:
            return f"max_new_tokens is {self.max_new_tokens}, but it must be at least 1."
        if self.temperature != 0.0 and not COLDEST <= self.temperature <= HOTTEST:
            return (
                f"temperature is {shown(self.temperature)}, but it must be 0 or from {COLDEST} on."
            )
        if self.top_k != -1 and self.top_k < 1:
            return f"top_k is {self.top_k}, but it must be at least 1, or -1 for no limit."
        if not 0.0 < self.top_p <= 1.0:
            return f"top_p is {shown(self.top_p)}, but it must be above 0 and at most 1."
        return self._problem_of_history() or self._problem_of_logprobs()

    def _problem_of_logprobs(self) -> str | None:
        count, start = self.top_logprobs_num, self.logprob_start_len
        if count < 0:
            return f"top_logprobs_num is {count}, but it must be at least 0."
        if start < -1:
            return f"logprob_start_len is {start}, but it must be at least 0, or -1 for none."
        if self.return_logprob or (count == 0 and start == -1):
            return None
        name, value = ("top_logprobs_num", count) if count else ("logprob_start_len", start)
        return f"{name} is {value}, but it needs return_logprob, which is off."

    def _problem_of_history(self) -> str | None:
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            if not -HIGHEST_PENALTY <= value <= HIGHEST_PENALTY:
                return f"{name} is {shown(value)}, but it must be between -2 and 2."
        if not COLDEST <= self.repetition_penalty <= HIGHEST_PENALTY:  # it divides logits as well
            return (
                f"repetition_penalty is {shown(self.repetition_penalty)}, "
                f"but it must be between {COLDEST} and 2."
            )
        for token, bias in self.logit_bias.items():
            if not -HIGHEST_BIAS <= bias <= HIGHEST_BIAS:
                return (
                    f"logit_bias is {shown(bias)} for token {shown(token)}, "
                    "but it must be between -100 and 100."
                )
        if "" in self.stop:
            return "stop is '', but a stop string must have at least one character."
        return None


@dataclass(frozen=True)
class LogitAdjustment:
    """The changes of one row of logits, in this order (SGLang ``sampling/penaltylib/``).

    ``repetition_penalty``: a positive logit of a token in ``seen`` (prompt and output) is divided
    by it, a negative one multiplied. ``frequency_penalty`` times its count in ``counts`` (output
    only) is subtracted, and ``presence_penalty`` once. ``logit_bias`` is added. A token without its
    bit in ``vocab_mask`` (bit i % 8 of byte i // 8) can't be chosen.
    """

    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seen: Set[int] = frozenset()
    counts: Mapping[int, int] = field(default_factory=dict)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    vocab_mask: bytes | None = None


# -- A grammar, as the scheduler sees it: the state of one request's output ------------------------


class Grammar(Protocol):
    """One request's state in its grammar (SGLang ``constrained/base_grammar_backend.py``).

    The mask for the next token depends on the last one, so sampling has to wait for it. A token has
    its bit in the mask exactly if ``accept_token`` accepts it. An end-of-text token is allowed
    exactly where the grammar accepts an end; after it no token is.
    """

    @property
    def is_terminated(self) -> bool:
        """Return whether the output is complete and no text can follow.

        It is never complete before its first token: the empty text ends with an end-of-text token.
        """
        ...

    def accept_token(self, token: int) -> bool:
        """Advance by one token; return False, and do not change, if it is not allowed."""
        ...

    def fill_vocab_mask(self) -> bytes:
        """Return the tokens that may come next: bit i % 8 of byte i // 8; ceil(vocab / 32) * 4."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted, as far as there are any."""
        ...
