"""Reads what stands for one character of a regex: an escape or a class; and keeps the place."""

from __future__ import annotations

import string

BYTES = frozenset(range(256))
NO_RANGE = "a range beyond ASCII, where each character has to be named"
BEYOND = frozenset(range(128, 256))  # bytes of the characters that are not ASCII
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
        return self.regex.startswith("-", self.at) and self.regex[self.at + 1 :][:1] not in (
            "]",
            "",
        )

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


def shown(text: str) -> str:
    """A text in quotes, cut where it is long."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
