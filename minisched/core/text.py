"""Names from outside, such as a request's id: made safe to show, and made different."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

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


def distinct(names: Iterable[str]) -> Iterator[str]:
    """Yield each name, and a repeated one with a number: ``a``, ``a (2)``, ``a (3)``.

    A number is skipped if another item has that very name, so no two results are equal.
    """
    asked = list(names)
    taken, seen = set(asked), Counter[str]()
    for name in asked:
        seen[name] += 1
        given = name
        while seen[name] > 1 and (given := f"{name} ({seen[name]})") in taken:
            seen[name] += 1
        taken.add(given)
        yield given
