r"""Reads the language of ``--regex``: from text to a tree of five kinds of parts.

Characters, ``.``, classes (``[a-z_]``, ``[^0-9]``), ``|``, groups, ``* + ? {m} {m,} {,n} {m,n}``,
the escapes ``\n \t \r \f \v \xHH \d \D \w \W \s \S``, and a backslash before any sign.
It matches what Python's ``re.fullmatch`` matches with ``re.ASCII``; whatever else ``re`` knows, or
another library reads out of the same signs (``[a-z&&[b]]``), is refused or has no such meaning.

For the hash model the tree becomes an automaton over bytes, which are its tokens; for a model with
a tokenizer it is written out again for llguidance, over characters. What ``.``, ``\D \W \S`` and
``[^a]`` take of a character beyond ASCII is therefore one byte for the hash model, and all of it
for the others; for a text of ASCII there is no difference.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

# -- The tree -------------------------------------------------------------------------------------


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


# -- The parser: recursive descent, one method for each rule ---------------------------------------

BYTES = frozenset(range(256))
NO_RANGE = "a range beyond ASCII, where each character has to be named"
BEYOND = frozenset(range(128, 256))  # bytes of the characters that are not ASCII
ESCAPES = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11}
DIGITS = frozenset(string.digits.encode())
SPACES = frozenset(string.whitespace.encode())
WORDS = DIGITS | frozenset((string.ascii_letters + "_").encode())
CLASSES = {"d": DIGITS, "w": WORDS, "s": SPACES,
           "D": BYTES - DIGITS, "W": BYTES - WORDS, "S": BYTES - SPACES}  # fmt: skip
MAX_DEPTH = 50  # groups within groups
REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


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


def shown(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


class Parser:
    """Goes through a regex; ``at`` is the place it has come to."""

    def __init__(self, regex: str) -> None:
        self.regex, self.at, self.depth = regex, 0, 0

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
        repeats = ("{", *REPEATS)
        if not self.regex.startswith(repeats, self.at):
            return part
        sign = self.next()
        least, most = self.counts() if sign == "{" else REPEATS[sign]
        if self.regex.startswith(repeats, self.at):
            raise self.error("a repetition of a repetition, which needs a group", self.at)
        return Repeat(part, least, most)

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

    def take(self, sign: str) -> bool:
        """Step over a sign, if it comes now."""
        found = self.regex.startswith(sign, self.at)
        self.at += found
        return found

    def next(self) -> str:
        """Step over a character; empty at the end."""
        char = self.regex[self.at : self.at + 1]
        self.at += 1
        return char

    def char_class(self) -> tuple[frozenset[int], list[str]]:
        """What follows a ``[``: its bytes, and its characters beyond ASCII.

        A ``]`` at once after it, or after ``[^``, is a member.
        """
        start, negated = self.at - 1, self.take("^")
        codes: frozenset[int] = frozenset()
        chars: list[str] = []
        while not (codes or chars) or not self.take("]"):
            if self.at >= len(self.regex):
                raise self.error("a [ that is never closed", start)
            if self.regex[self.at].isascii():
                codes |= self.class_range()
            else:
                chars.append(self.next())
                if self.is_range():
                    raise self.error(NO_RANGE, self.at - 1)
        if negated and chars:
            raise self.error(
                f"{chars[0]!r} in a class of all others, which names ASCII only", start
            )
        return self.whole(BYTES - codes if negated else codes, start), chars

    def whole(self, codes: frozenset[int], start: int) -> frozenset[int]:
        """All bytes beyond ASCII, or none of them: a single one is no character of a text."""
        if codes & BEYOND and not codes >= BEYOND:
            raise self.error("a byte from \\x80 on without all the others, which is no text", start)
        return codes

    def class_range(self) -> frozenset[int]:
        """One member of a class, or a range of them; a ``-`` at the end is a member itself."""
        start, low = self.at, self.member()
        if not self.is_range():
            return low
        self.next()
        high = self.member()
        if len(low) != 1 or len(high) != 1 or min(high) < min(low):
            raise self.error("a range that does not go from one character up to another", start)
        return frozenset(range(min(low), min(high) + 1))

    def is_range(self) -> bool:
        """Whether the member of a class that has just been read is the start of a range."""
        behind = self.regex[self.at + 1 : self.at + 2]
        return self.regex.startswith("-", self.at) and behind not in ("]", "")

    def member(self) -> frozenset[int]:
        """A character of a class, or an escape."""
        start, char = self.at, self.next()
        if char == "\\":
            return self.escape()
        if not char.isascii():
            raise self.error(NO_RANGE, start)
        return frozenset({ord(char)})

    def escape(self) -> frozenset[int]:
        """What follows a backslash."""
        start, char = self.at - 1, self.next()
        if char in CLASSES:
            return CLASSES[char]
        if char in ESCAPES:
            return frozenset({ESCAPES[char]})
        digits = self.regex[self.at : self.at + 2]
        if char == "x" and len(digits) == 2 and all(digit in string.hexdigits for digit in digits):
            self.at += 2
            return frozenset({int(digits, 16)})
        if not char or char.isalnum() or not char.isascii():
            raise self.error(f"an escape \\{char} that is not known here", start)
        return frozenset({ord(char)})

    def error(self, what: str, at: int) -> ValueError:
        """The sentence about what stands at a place."""
        return ValueError(
            f"regex {shown(self.regex)} can't be compiled: there is {what}, at position {at}."
        )
