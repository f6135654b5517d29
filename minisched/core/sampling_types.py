"""What kind of value each field of a request must be; somebody else's JSON may hold anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, cast

NUMBER, WHOLE, TEXT = "a number", "a whole number of at most 64 bits", "a text, or None"
TRUTH, NAME = "True or False", "a text of at least one character"
WORDS = "a tuple of strings"
LONGEST = 60  # characters of a value that a sentence quotes

KINDS = {
    "temperature": NUMBER,
    "top_k": WHOLE,
    "top_p": NUMBER,
    "seed": WHOLE,
    "max_new_tokens": WHOLE,
    "stop_token_ids": "a set of whole numbers",
    "ignore_eos": TRUTH,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "logit_bias": "a mapping of token ids to numbers",
    "regex": TEXT,
    "json_schema": TEXT,
    "stop": WORDS,
    "return_logprob": TRUTH,
    "top_logprobs_num": WHOLE,
    "logprob_start_len": WHOLE,
}
"""Of ``SamplingParams``: all its fields."""

REQUEST_KINDS = {
    "rid": NAME,
    "prompt": "a list of token ids",
    "arrival_time": WHOLE,
    "priority": WHOLE,
}
"""Of ``Request``: what a client fills in, but for its ``params``."""


def wrong_type(item: Any, kinds: Mapping[str, str] = KINDS) -> str | None:
    """One sentence on the first field that is no value of its kind, or None."""
    for name, kind in kinds.items():
        value = getattr(item, name)
        if not IS_OF_KIND[kind](value):
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
    """A value as a sentence can quote it: in one line, not long, whatever it holds."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # of a number with thousands of digits, say
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def is_whole(value: object) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_short(value: object) -> bool:
    """Whether it is a whole number of at most 64 bits, as a time in nanoseconds has to be."""
    return is_whole(value) and -(2**63) <= cast(int, value) < 2**63


def is_number(value: object) -> bool:
    """Whether it is a number; its limits are another question, which NaN fails."""
    return isinstance(value, float) or is_whole(value)


def is_text(value: object) -> bool:
    """Whether it can be written down: half of a surrogate pair, which JSON allows, can't."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


IS_OF_KIND: dict[str, Callable[[Any], bool]] = {
    NUMBER: is_number,
    WHOLE: is_short,
    TEXT: lambda value: value is None or is_text(value),
    TRUTH: lambda value: isinstance(value, bool),
    NAME: lambda value: is_text(value) and value != "",
    WORDS: lambda value: isinstance(value, tuple) and all(map(is_text, value)),
    KINDS["stop_token_ids"]: lambda value: isinstance(value, Set) and all(map(is_whole, value)),
    KINDS["logit_bias"]: lambda value: (
        isinstance(value, Mapping)
        and all(map(is_whole, value))
        and all(map(is_number, value.values()))
    ),
    REQUEST_KINDS["prompt"]: lambda value: (
        isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)
    ),
}
