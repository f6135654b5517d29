"""Reads what stands for one character of a regex: an escape or a class; and keeps the place."""

from __future__ import annotations

import string

BYTES = frozenset(range(256))
ESCAPES = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11}
DIGITS = frozenset(string.digits.encode())
SPACES = frozenset(string.whitespace.encode())
WORDS = DIGITS | frozenset((string.ascii_letters + "_").encode())
CLASSES = {"d": DIGITS, "w": WORDS, "s": SPACES,
           "D": BYTES - DIGITS, "W": BYTES - WORDS, "S": BYTES - SPACES}  # fmt: skip


class CharReader:
    """Goes through a regex; ``at`` is the place it has come to."""

    def __init__(self, regex: str) -> None:
        self.regex, self.at = regex, 0

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

    def char_class(self) -> frozenset[int]:
        """What follows a ``[``; a ``]`` at once after it, or after ``[^``, is a member."""
        start, negated = self.at - 1, self.take("^")
        codes: set[int] = set()
        while not codes or not self.take("]"):
            if self.at >= len(self.regex):
                raise self.error("a [ that is never closed", start)
            codes |= self.class_range()
        return BYTES - codes if negated else frozenset(codes)

    def class_range(self) -> frozenset[int]:
        """One member of a class, or a range of them; a ``-`` at the end is a member itself."""
        start, low = self.at, self.member()
        if self.regex[self.at : self.at + 1] != "-" or self.regex[self.at + 1 :][:1] in ("]", ""):
            return low
        self.next()
        high = self.member()
        if len(low) != 1 or len(high) != 1 or min(high) < min(low):
            raise self.error("a range that does not go from one character up to another", start)
        return frozenset(range(min(low), min(high) + 1))

    def member(self) -> frozenset[int]:
        """A character of a class, or an escape."""
        start, char = self.at, self.next()
        if char == "\\":
            return self.escape()
        if not char.isascii():
            raise self.error(f"{char!r} in a class, whose characters are single bytes", start)
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


def shown(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
