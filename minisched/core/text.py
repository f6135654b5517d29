"""Text from outside, such as a request's id or a trace's names, made safe to show."""

from __future__ import annotations

import re

# Control characters but tab and line end, marks that reorder text, and what UTF-8 or XML lacks.
HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    r"""Return a text with control characters written out, so that a terminal obeys none of them.

    >>> printable("a\x1b[2J")
    'a\\x1b[2J'
    """
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
