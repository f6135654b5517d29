"""What llguidance is given to compile, and what it complains of as one sentence."""

from __future__ import annotations

import json
import re

from llguidance import regex_to_lark

from .regex_chars import shown

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""A token is allowed wherever the text can still be completed. By default the library forces the
tokenizer's own cut where the text is certain, and takes the name of a special token for it."""

SPACES = {"whitespace_pattern": "[ ]?"}
"""Between the parts of JSON; else a small model may fill its whole output with spaces."""

ASCII = "dws"  # which escapes mean ASCII characters alone, as in the automaton of regex.py


def to_lark(kind: str, text: str) -> str:
    """A regex or a JSON schema in the library's language.

    Raises:
        ValueError: the regex ends within an escape, or the schema is no JSON.
    """
    if kind == "regex":
        if (len(text) - len(text.rstrip("\\"))) % 2:
            raise ValueError(refusal(kind, text, "it ends with a single backslash"))
        return f"{OPTIONS}start: /{regex_to_lark(text, ASCII)}/"
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(refusal(kind, text, f"it is no JSON, {error}")) from error
    if schema is True:
        schema = {}
    if isinstance(schema, dict):
        schema = {"x-guidance": SPACES, **schema}
    return f"{OPTIONS}start: %json {json.dumps(schema)}"


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
