"""What kind of value each sampling option must be; somebody else's JSON may hold anything."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

NUMBER, WHOLE, TEXT = "a number", "a whole number", "a text, or None"

KINDS = {
    "temperature": NUMBER,
    "top_k": WHOLE,
    "top_p": NUMBER,
    "seed": WHOLE,
    "max_new_tokens": WHOLE,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "regex": TEXT,
    "json_schema": TEXT,
    "top_logprobs_num": WHOLE,
    "logprob_start_len": WHOLE,
    "stop_token_ids": "a set of whole numbers",
    "logit_bias": "a mapping of token ids to numbers",
    "stop": "a tuple of strings",
}


def wrong_type(params: Any) -> str | None:
    """One sentence on the first option that is no value of its kind, or None."""
    for name, kind in KINDS.items():
        value = getattr(params, name)
        if not is_of_kind(value, kind):
            return f"{name} is {value!r}, but it must be {kind}."
    return None


def is_of_kind(value: Any, kind: str) -> bool:
    """Whether a value is what ``kind`` says."""
    if kind == NUMBER:
        return isinstance(value, int | float)
    if kind == WHOLE:
        return isinstance(value, int)
    if kind == TEXT:
        return value is None or isinstance(value, str)
    if kind.startswith("a mapping"):
        return isinstance(value, Mapping) and all(
            isinstance(token, int) and isinstance(bias, int | float)
            for token, bias in value.items()
        )
    if kind.startswith("a tuple"):
        return isinstance(value, tuple) and all(isinstance(text, str) for text in value)
    return isinstance(value, Set) and all(isinstance(token, int) for token in value)
