"""Which character of a regex may come after which: Glushkov's construction, no empty moves.

Every character of the regex, its repetitions written out, is a *position*. Position 0 is the place
before all of them. A text matches if it can step from 0 along ``follow``, each step on a position
whose set holds the text's next character, and end on a position in ``last``.
Source: V. M. Glushkov, "The abstract theory of automata", 1961.
"""

from __future__ import annotations

from typing import NamedTuple

from .regex import Beyond, Chars, Either, Part, Repeat, Then

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
