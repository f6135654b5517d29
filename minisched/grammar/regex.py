r"""A regex over the text that a request may generate, and the bytes that may follow each text.

Python's own parser reads it, so a regex means the same as in ``re.fullmatch`` with ``re.ASCII``.
Some of Python's syntax is refused: that of no regular language (``(a)\1``, ``(?=a)``), and that
which changes the meaning of characters (``(?i)``). Places (``^``, ``$``) are refused, because all
of the output has to match. The rest is a tree of a few kinds of parts (``Part``).

Where tokens are bytes, a regex becomes a *position automaton* (V. M. Glushkov, "The abstract theory
of automata", 1961). Each character of the regex is a position, and the positions that may follow it
are a set. A request's state is the set of positions for its next byte. Sets are integers with a bit
for each position. So a token costs one ``or`` of such an integer for each position at most, and a
request keeps one integer for each token. No position leads to a dead end.

``.``, ``\D \W \S`` and ``[^a]`` match one byte of a character beyond ASCII here.
"""

from __future__ import annotations

import re
import string
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain, islice
from re import _parser as parser  # type: ignore[attr-defined]  # Hypothesis reads it, too
from typing import Any

from ..core.sampling import shown

# -- The tree --------------------------------------------------------------------------------------

Part = tuple[Any, ...]
"""``("chars", codes)``: one character of ASCII, or byte, out of a set. ``("beyond", char)``: one
character beyond ASCII. ``("then", parts)``: all in order. ``("either", options)``: one of a set.
``("repeat", body, least, most)``: as often as that, without limit where ``most`` is None."""

EMPTY: Part = ("then", ())  # the empty text
NEVER: Part = ("either", frozenset())  # no text at all

BYTES = frozenset(range(256))
BEYOND = frozenset(range(128, 256))  # bytes of the characters that are not ASCII
DIGITS = frozenset(string.digits.encode())
SPACES = frozenset(string.whitespace.encode())
WORDS = DIGITS | frozenset((string.ascii_letters + "_").encode())
CATEGORIES = {
    "CATEGORY_DIGIT": DIGITS, "CATEGORY_NOT_DIGIT": BYTES - DIGITS,
    "CATEGORY_SPACE": SPACES, "CATEGORY_NOT_SPACE": BYTES - SPACES,
    "CATEGORY_WORD": WORDS, "CATEGORY_NOT_WORD": BYTES - WORDS,
}  # fmt: skip


def chars(codes: Iterable[int]) -> Part:
    """One character out of a set."""
    codes = frozenset(codes)
    return ("chars", codes) if codes else NEVER


def then(parts: Iterable[Part]) -> Part:
    """Parts one after the other."""
    flat = [each for part in parts for each in (part[1] if part[0] == "then" else (part,))]
    if NEVER in flat:
        return NEVER
    return flat[0] if len(flat) == 1 else ("then", tuple(flat))


def either(options: Iterable[Part]) -> Part:
    """One of several parts."""
    flat = {each for part in options for each in (part[1] if part[0] == "either" else (part,))}
    return flat.pop() if len(flat) == 1 else ("either", frozenset(flat))


def repeat(body: Part, least: int, most: int | None) -> Part:
    """A part again and again."""
    if most == 0 or body == EMPTY or (body == NEVER and not least):
        return EMPTY
    return body if least == most == 1 or body == NEVER else ("repeat", body, least, most)


def parse(regex: str) -> Part:
    """Return the tree of a regex.

    Raises:
        ValueError: it is none, is too long, or has something that is not known here; one sentence.
    """
    if len(regex) > MAX_TEXT:
        raise ValueError(
            f"regex {shown(regex)} can't be compiled: it is a text of {len(regex)} characters, but "
            f"at most {MAX_TEXT} are read."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of signs that may once mean sets
            found = parser.parse(regex, re.ASCII)
        if found.state.flags & ~(re.ASCII | re.UNICODE):
            raise ValueError("there is flags, which change what signs mean")
        return read(found)
    except (ValueError, RecursionError, re.error, OverflowError) as error:
        why = "it is too deep" if isinstance(error, RecursionError) else error
        raise ValueError(f"regex {shown(regex)} can't be compiled: {why}.") from error


def read(items: Iterable[tuple[Any, Any]]) -> Part:
    """Return the part for the items of Python's parser.

    Raises:
        ValueError: it is not known here.
    """
    return then(read_one(str(kind), of) for kind, of in items)


def read_one(kind: str, of: Any) -> Part:
    """Return the part for one item of Python's parser."""
    match kind:
        case "LITERAL":
            return chars([of]) if of < 128 else ("beyond", chr(of))
        case "NOT_LITERAL":
            return read_class([("NEGATE", None), ("LITERAL", of)])
        case "ANY":
            return chars(BYTES - {ord("\n")})
        case "IN":
            return read_class(of)
        case "BRANCH":
            return either(map(read, of[1]))
        case "SUBPATTERN":
            _, flags, other_flags, body = of
            if flags or other_flags:
                raise ValueError("there is flags, which change what signs mean")
            return read(body)
        case "MAX_REPEAT" | "MIN_REPEAT":  # which differ in how they look, not in what they find
            least, most, body = of
            return repeat(read(body), least, None if most is parser.MAXREPEAT else int(most))
        case "AT":
            raise ValueError(
                "there is a place, such as ^ or $, though all of the output has to match anyway"
            )
        case _:
            what = kind.lower().replace("_", " ")
            raise ValueError(f"there is {what}, which is not known here")


def read_class(members: Iterable[tuple[Any, Any]]) -> Part:
    """Return the part for the members of a class in brackets.

    Raises:
        ValueError: of characters beyond ASCII there is a range, or all but one.
    """
    codes, beyond, is_negated = frozenset[int](), list[Part](), False
    for kind, of in members:
        match str(kind):
            case "NEGATE":
                is_negated = True
            case "LITERAL" if of < 128:
                codes |= {of}
            case "LITERAL":
                beyond.append(("beyond", chr(of)))
            case "RANGE":
                span = frozenset(range(of[0], of[1] + 1))
                if max(span) > 127 and (not span >= BEYOND or max(span) > 255):
                    raise ValueError(
                        "there is a range beyond ASCII, where each character has to be named"
                    )
                codes |= span
            case "CATEGORY":
                codes |= CATEGORIES[str(of)]
    if is_negated and beyond:
        char = beyond[0][1]
        raise ValueError(f"there is {char!r} in a class of all others, which names ASCII only")
    return either([chars(BYTES - codes if is_negated else codes), *beyond])


# -- Over bytes ------------------------------------------------------------------------------------


def in_bytes(part: Part, known: frozenset[int]) -> Part:
    """Return the same part over bytes, of which only the ``known`` ones may come."""
    match part:
        case ("chars", codes):
            return chars(codes & known)
        case ("beyond", char):
            return then(chars({byte} & known) for byte in char.encode())
        case ("repeat", body, least, most):
            return repeat(in_bytes(body, known), least, most)
        case (kind, parts):
            return (then if kind == "then" else either)(in_bytes(each, known) for each in parts)
    raise AssertionError(part)


def sets_in(part: Part) -> Iterator[frozenset[int]]:
    """Yield the set of each character in a part; of a repeated one as often as it may come."""
    match part:
        case ("chars", codes):
            yield codes
        case ("repeat", body, least, most):
            for _ in range(most or least or 1):
                yield from sets_in(body)
        case (_, parts):
            yield from chain.from_iterable(map(sets_in, parts))


# -- States, and what each of them allows ----------------------------------------------------------

MAX_TEXT = 20_000  # characters in which a regex is written
MAX_CHARS = 1000  # in a regex, those repeated counted again
OVER = 0  # the state after an end-of-text token: no position
END = 1  # the bit of the end of the text; position i has the bit i


class Automaton:
    """A regex over the tokens below 256 that are no end of text.

    From each state an end can be reached with the tokens that there are.

    Raises:
        ValueError: the regex is none, is too large, or no token can satisfy it; one sentence.
    """

    def __init__(self, regex: str, vocab_size: int, eos_ids: frozenset[int]) -> None:
        known = frozenset(token for token in BYTES - eos_ids if token < vocab_size)
        tree, problem = in_bytes(parse(regex), known), ""
        if len([*islice(sets_in(tree), MAX_CHARS + 1)]) > MAX_CHARS:
            raise ValueError(
                f"regex {shown(regex)} can't be compiled: with all its repeats it has more than "
                f"{MAX_CHARS} characters."
            )
        self.follow = [0]  # by position, the state after it; 0 is no position
        self.takes: dict[frozenset[int], int] = {}  # positions of each set of bytes
        self.depth = 0  # of loops, while they are added
        self.start = self._add(tree, END)
        alike: dict[int, list[int]] = {}
        for token in known:
            takes = 0
            for codes, positions in self.takes.items():
                takes |= positions if token in codes else 0
            alike.setdefault(takes, []).append(token)
        self.columns = {  # the tokens, as a mask, that take a byte of the same positions
            takes: sum(1 << token for token in tokens) for takes, tokens in alike.items()
        }
        self.taken_by = {token: takes for takes, tokens in alike.items() for token in tokens}
        self.eos_ids, self.eos_mask = eos_ids, sum(1 << token for token in eos_ids)
        self.num_bytes = -(-vocab_size // 32) * 4
        if tree == NEVER:
            problem = "no text of this vocabulary matches it"
        elif self.start == END and not eos_ids:
            problem = "only the empty text matches it, and this model has no end-of-text token"
        if problem:
            raise ValueError(f"no token can satisfy regex {shown(regex)}: {problem}.")

    def _add(self, part: Part, after: int) -> int:
        """Add a part's positions, with the state ``after`` the part; return the state before it."""
        match part:
            case ("chars", codes):
                position = 1 << len(self.follow)
                self.follow.append(after)
                self.takes[codes] = self.takes.get(codes, 0) | position
                return position
            case ("then", parts):
                for each in reversed(parts):
                    after = self._add(each, after)
                return after
            case ("either", options):
                before = 0
                for each in options:
                    before |= self._add(each, after)
                return before
            case ("repeat", body, least, most):
                copies, state = most or max(1, least), after
                for at in range(copies, 0, -1):  # the last one first
                    is_loop = most is None and at == copies
                    state = self._add_loop(body, after) if is_loop else self._add(body, state)
                    state |= after if at - 1 >= least else 0
                return state
        raise AssertionError(part)

    def _add_loop(self, body: Part, after: int) -> int:
        """Add a part that comes once or more; return the state before it.

        Its end leads back to that state, for which a bit stands until it is known.
        """
        self.depth += 1
        first, again = len(self.follow), 1 << MAX_CHARS + 1 + self.depth
        before = self._add(body, after | again) & ~again
        for at in range(first, len(self.follow)):
            if self.follow[at] & again:
                self.follow[at] = self.follow[at] & ~again | before | after
        self.depth -= 1
        return before

    def after(self, state: int, token: int) -> int | None:
        """Return the state after a token; None if it is not allowed."""
        if token in self.eos_ids:
            return OVER if state & END else None
        following, positions = OVER, state & self.taken_by.get(token, 0)
        while positions:
            position = positions & -positions
            following |= self.follow[position.bit_length() - 1]
            positions ^= position
        return following or None

    def mask(self, state: int) -> bytes:
        """Return the tokens that are allowed, as ``core.Grammar`` masks them."""
        mask = self.eos_mask if state & END else 0
        for takes, tokens in self.columns.items():
            mask |= tokens if state & takes else 0
        return mask.to_bytes(self.num_bytes, "little")


build = lru_cache(maxsize=64)(Automaton)  # requests with the same regex share one


# -- One request's place: a stack of states, so that steps can be taken back -----------------------


class TokenGrammar:
    """A ``core.Grammar`` over an automaton."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.states = [automaton.start]  # [num_tokens + 1] after each token that was accepted

    @property
    def is_terminated(self) -> bool:
        """Return whether the accepted tokens allow no more text."""
        return len(self.states) > 1 and self.states[-1] in (OVER, END)

    def accept_token(self, token: int) -> bool:
        """Go on by one token; return False, and stay, if it is not allowed."""
        following = self.automaton.after(self.states[-1], token)
        if following is not None:
            self.states.append(following)
        return following is not None

    def fill_vocab_mask(self) -> bytes:
        """Return the tokens that lead on from here; none, once an end-of-text token has come."""
        return self.automaton.mask(self.states[-1])

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        del self.states[max(1, len(self.states) - num_tokens) :]
