"""What llguidance is given to compile, and what it complains of as one sentence."""

from __future__ import annotations

import json
import re
from itertools import groupby

from .regex import Beyond, Chars, Either, Part, Repeat, Then, parse
from .regex_chars import BEYOND, BYTES, shown

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""A token is allowed wherever the text can still be completed. By default the library forces the
tokenizer's own cut where the text is certain, and takes the name of a special token for it."""

SPACES = {"whitespace_pattern": "[ ]?"}
"""Between the parts of JSON; else a small model may fill its whole output with spaces."""


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
        case Chars(codes):
            if codes >= BEYOND:
                return f"[^{ranges(BYTES - codes)}]" if codes < BYTES else "(?s:.)"
            return f"[{ranges(codes)}]" if codes else r"[^\x00-\x{10ffff}]"
        case Beyond(char):
            return rf"\x{{{ord(char):x}}}"
        case Then(parts):
            return f"(?:{''.join(map(written, parts))})"
        case Either(options):
            return f"(?:{'|'.join(map(written, options))})"
        case Repeat(body, least, most):
            return f"(?:{written(body)}){{{least},{'' if most is None else most}}}"


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
