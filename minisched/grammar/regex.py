"""Reads the language of ``--regex``: from text to a tree of five kinds of parts.

Characters, ``.``, classes (``[a-z_]``, ``[^0-9]``), ``|``, groups, ``* + ? {m} {m,} {,n} {m,n}``,
the escapes ``\\n \\t \\r \\f \\v \\xHH \\d \\D \\w \\W \\s \\S``, and a backslash before any sign.
It matches what Python's ``re.fullmatch`` matches with ``re.ASCII``; whatever else ``re`` knows, or
another library reads out of the same signs (``[a-z&&[b]]``), is refused or has no such meaning.

The tree is the same for every model, so that a regex means one thing. For the hash model it goes on
to an automaton over bytes, which are its tokens; for a model with a tokenizer it is written out
again for llguidance, over characters. What ``.``, ``\\D \\W \\S`` and ``[^a]`` take of a character
beyond ASCII is therefore one byte for the hash model, and all of it for the others; for a text of
ASCII there is no difference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .regex_chars import BYTES, CharReader

MAX_DEPTH = 50  # groups within groups
REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True)
class Chars:
    """One character out of a set."""

    codes: frozenset[int]


@dataclass(frozen=True)
class Beyond:
    """One character beyond ASCII; to a model of bytes, its UTF-8."""

    char: str


@dataclass(frozen=True)
class Then:
    """Parts one after the other; without any, the empty text."""

    parts: Sequence[Part]


@dataclass(frozen=True)
class Either:
    """One of several parts."""

    options: Sequence[Part]


@dataclass(frozen=True)
class Repeat:
    """A part at least so often, and at most so often (None: without limit)."""

    body: Part
    least: int
    most: int | None


Part = Chars | Beyond | Then | Either | Repeat


def parse(regex: str) -> Part:
    """The tree of a regex.

    Raises:
        ValueError: it is none; one sentence that says what is wrong and where.
    """
    parser = Parser(regex)
    part = parser.either()
    if parser.at < len(regex):
        raise parser.error("a ) that closes nothing", parser.at)
    return part


class Parser(CharReader):
    """Recursive descent: one method for each rule."""

    depth = 0

    def either(self) -> Part:
        """``option|option|...``"""
        options = [self.then()]
        while self.take("|"):
            options.append(self.then())
        return options[0] if len(options) == 1 else Either(options)

    def then(self) -> Part:
        """``part part ...`` up to a ``|``, a ``)`` or the end."""
        parts = []
        while self.at < len(self.regex) and self.regex[self.at] not in "|)":
            parts.append(self.repeated())
        return parts[0] if len(parts) == 1 else Then(parts)

    def repeated(self) -> Part:
        """A part and how often it comes."""
        part = self.single()
        if not self._repeats():
            return part
        sign = self.next()
        least, most = self.counts() if sign == "{" else REPEATS[sign]
        if self._repeats():
            raise self.error("a repetition of a repetition, which needs a group", self.at)
        return Repeat(part, least, most)

    def _repeats(self) -> bool:
        return self.regex.startswith(("{", *REPEATS), self.at)

    def counts(self) -> tuple[int, int | None]:
        """What stands in braces: ``m``, ``m,``, ``,n`` or ``m,n``."""
        start, end = self.at, self.regex.find("}", self.at)
        low, comma, high = self.regex[start:end].partition(",")
        is_counted = all(re.fullmatch("[0-9]{0,4}", text) for text in (low, high))
        if end < 0 or not is_counted or not (low or high):
            raise self.error(
                "a { without counts of up to 4 digits (the sign itself is \\{)", start - 1
            )
        least = int(low or 0)
        most = int(high) if high else None if comma else least
        if most is not None and most < least:
            raise self.error(f"a repetition of at least {least} and at most {most}", start - 1)
        self.at = end + 1
        return least, most

    def single(self) -> Part:
        """A group, a class, a dot, an escape or a character."""
        start, char = self.at, self.next()
        if char == "(":
            return self.group()
        if char == "[":
            codes, chars = self.char_class()
            options: list[Part] = [Beyond(char) for char in chars]
            if codes or not chars:
                options.append(Chars(codes))
            return options[0] if len(options) == 1 else Either(options)
        if char == ".":
            return Chars(BYTES - {ord("\n")})
        if char == "\\":
            return Chars(self.whole(self.escape(), start))
        if char in "*+?{":
            raise self.error(f"a {char} with nothing before it", start)
        if char in "^$":
            raise self.error(f"a {char}, though all of the output has to match anyway", start)
        return Chars(frozenset({ord(char)})) if char.isascii() else Beyond(char)

    def group(self) -> Part:
        """What follows a ``(``; ``(?:`` means the same."""
        start = self.at - 1
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} groups within each other", start)
        if self.take("?") and not self.take(":"):
            raise self.error("a group of a kind that is not known here", start)
        part = self.either()
        if not self.take(")"):
            raise self.error("a ( that is never closed", start)
        self.depth -= 1
        return part
