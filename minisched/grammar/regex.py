r"""Reads the language of ``--regex``: from text to a tree of five kinds of parts.

Characters, ``.``, classes (``[a-z_]``, ``[^0-9]``), ``|``, groups, ``* + ? {m} {m,} {,n} {m,n}``,
the escapes ``\n \t \r \f \v \xHH \d \D \w \W \s \S``, and a backslash before any sign.
It matches what Python's ``re.fullmatch`` matches with ``re.ASCII``; whatever else ``re`` knows, or
another library reads out of the same signs (``[a-z&&[b]]``), is refused or has no such meaning.

The tree is the same for every model, so that a regex means one thing. For the hash model it goes on
to an automaton over bytes, which are its tokens; for a model with a tokenizer it is written out
again for llguidance, over characters. What ``.``, ``\D \W \S`` and ``[^a]`` take of a character
beyond ASCII is therefore one byte for the hash model, and all of it for the others; for a text of
ASCII there is no difference.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

# -- Reads what stands for one character of a regex: an escape or a class; and keeps the place -----

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


# -- The states that an output may be in, as a table: a row for each state, a column for tokens ----
#
# For a vocabulary of which token i is the character i. A state is the set of positions of the regex
# that the text may stand on (``positions.py``), so the next one is always certain. ``build.py``
# makes it; ``show.py`` prints it.

START = 0  # the first state
NO = -1  # in a cell: not allowed here

State = frozenset[int]  # of positions; empty once an end-of-text token has come


class Automaton:
    """A regex over tokens. It never changes, so all requests with that regex share it.

    ``columns`` has tokens that go the same way from every state; the last column is that of the
    end-of-text tokens, which lead from an accepting state to one in which all is over.
    ``table[state][column]`` is the next state, or ``NO``.
    """

    def __init__(
        self,
        states: Sequence[State],
        columns: Sequence[Sequence[int]],
        table: Sequence[Sequence[int]],
        vocab_size: int,
    ) -> None:
        self.states, self.columns, self.table = states, columns, table
        self.column_of = {token: at for at, tokens in enumerate(columns) for token in tokens}
        bits = [sum(1 << token for token in tokens) for tokens in columns]
        num_bytes = -(-vocab_size // 32) * 4
        self.masks: list[bytes] = []  # [num_states] see Grammar.fill_vocab_mask
        for row in table:
            allowed = sum(bit for bit, cell in zip(bits, row, strict=True) if cell != NO)
            self.masks.append(allowed.to_bytes(num_bytes, "little"))

    def next_state(self, state: int, token: int) -> int:
        """Where a token leads, or ``NO``; two look-ups, however large the regex."""
        column = self.column_of.get(token)
        return NO if column is None else self.table[state][column]

    def is_accepting(self, state: int) -> bool:
        """Whether the text may end here."""
        return self.table[state][-1] != NO

    def is_final(self, state: int) -> bool:
        """Whether no more text can follow; at most an end-of-text token can."""
        return all(cell == NO for cell in self.table[state][:-1])


# -- Which character of a regex may come after which: Glushkov's construction, no empty moves ------
#
# Every character of the regex, its repetitions written out, is a *position*. Position 0 is the
# place before all of them. A text matches if it can step from 0 along ``follow``, each step on a
# position whose set holds the text's next character, and end on a position in ``last``. Source: V.
# M. Glushkov, "The abstract theory of automata", 1961.

MAX_POSITIONS = 500  # with it the worst regex takes a third of a second


class TooLarge(ValueError):
    """A regex, or its automaton, is larger than what is allowed; the message has the limit."""


class Ends(NamedTuple):
    """How a part begins and ends."""

    nullable: bool  # it matches the empty text
    first: frozenset[int]  # positions it may begin with
    last: frozenset[int]  # positions it may end with


EMPTY = Ends(True, frozenset(), frozenset())


class Positions:
    """The positions of a regex.

    Raises:
        TooLarge: there are more than MAX_POSITIONS.
    """

    def __init__(self, regex: Part) -> None:
        self.chars: list[frozenset[int]] = [frozenset()]  # [num_positions] what stands there
        self.follow: list[set[int]] = [set()]  # [num_positions] which positions may come next
        self._num_parts = 0
        ends = self.place(regex)
        self.follow[0] |= ends.first
        self.last = ends.last | {0} if ends.nullable else ends.last

    def place(self, part: Part) -> Ends:
        """Give each character of a part a position, and link those within it."""
        self._num_parts += 1  # not only characters: a repeated empty group has none
        if self._num_parts > 10 * MAX_POSITIONS or len(self.chars) > MAX_POSITIONS:
            raise TooLarge(f"written out it has more than {MAX_POSITIONS} characters")
        match part:
            case Chars(codes):
                self.chars.append(codes)
                self.follow.append(set())
                here = frozenset({len(self.chars) - 1})
                return Ends(False, here, here)
            case Beyond(char):
                return self.join(EMPTY, *(Chars(frozenset({byte})) for byte in char.encode()))
            case Then(parts):
                return self.join(EMPTY, *parts)
            case Either(options):
                ends = [self.place(option) for option in options]
                nullable, first, last = zip(*ends, strict=True)
                return Ends(any(nullable), frozenset().union(*first), frozenset().union(*last))
            case Repeat(body, least, most):
                return self.repeat(body, least, most)

    def join(self, ends: Ends, *parts: Part) -> Ends:
        """Put parts behind what is placed already."""
        for part in parts:
            ends = self.link(ends, self.place(part))
        return ends

    def repeat(self, body: Part, least: int, most: int | None) -> Ends:
        """``least`` copies, then copies that may be left out, or one that may come again."""
        ends = EMPTY
        for _ in range(least):
            ends = self.link(ends, self.place(body))
        for _ in range(1 if most is None else most - least):
            copy = self.place(body)
            if most is None:
                self.link(copy, copy)
            ends = self.link(ends, copy._replace(nullable=True))
        return ends

    def link(self, left: Ends, right: Ends) -> Ends:
        """One part behind another."""
        for position in left.last:
            self.follow[position] |= right.first
        return Ends(
            left.nullable and right.nullable,
            left.first | right.first if left.nullable else left.first,
            left.last | right.last if right.nullable else right.last,
        )


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
