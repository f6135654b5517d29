r"""A regex over the text that a request may say: its language, and what may follow where, in bytes.

Python's own parser reads it, so that it means what ``re.fullmatch`` means with ``re.ASCII``. Of
what ``re`` knows, that is refused which is no regular language (``(a)\1``, ``(?=a)``), changes what
signs mean (``(?i)``), or says nothing where all of the output has to match anyway (``^``, ``$``).
What is left is a tree of a few kinds of parts (``Part``).

Where tokens are bytes, a request walks through states. A state is the set of what may still follow,
regexes again: the *partial derivatives* by the bytes that came (V. Antimirov, "Partial derivatives
of regular expressions and finite automaton constructions", 1996; there are no more of them than a
regex has characters). A state is made when somebody reaches it, and all requests with that regex
share it. Nothing that leads nowhere is ever made, so there are no dead ends to look for.

What ``.``, ``\D \W \S`` and ``[^a]`` take of a character beyond ASCII is one byte here, and all of
it where llguidance follows the regex over a model's own tokens; of ASCII both are the same.
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
"""``("chars", codes)``: one character of ASCII, or byte, out of a set; ``("beyond", char)``: one
character beyond ASCII; ``("then", parts)``: one after the other; ``("either", options)``: one of a
set; ``("repeat", body, least, most)``: as often as that, without limit where ``most`` is None."""

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
    """The tree of a regex.

    Raises:
        ValueError: it is none, or has something that is not known here; one sentence.
    """
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
    """What Python's parser has found, as a part.

    Raises:
        ValueError: it is not known here.
    """
    return then(read_one(str(kind), of) for kind, of in items)


def read_one(kind: str, of: Any) -> Part:
    """One thing that Python's parser has found."""
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
    """What stands in brackets.

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


# -- What may follow a byte ------------------------------------------------------------------------


def in_bytes(part: Part, known: frozenset[int]) -> Part:
    """The same over bytes, of which only those that are ``known`` may come."""
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


def nullable(part: Part) -> bool:
    """Whether the empty text is among those of a part."""
    match part:
        case ("then", parts):
            return all(map(nullable, parts))
        case ("either", options):
            return any(map(nullable, options))
        case ("repeat", body, least, _):
            return least == 0 or nullable(body)
    return False


def rests(part: Part, byte: int) -> Iterator[Part]:
    """What may follow a byte: the rests of all texts of a part that begin with it."""
    match part:
        case ("chars", codes):
            if byte in codes:
                yield EMPTY
        case ("either", options):
            for each in options:
                yield from rests(each, byte)
        case ("repeat", body, least, most):
            more = repeat(body, max(0, least - 1), None if most is None else most - 1)
            for rest in rests(body, byte):
                yield then([rest, more])
        case ("then", parts):
            for at, first in enumerate(parts):
                for rest in rests(first, byte):
                    yield then([rest, *parts[at + 1 :]])
                if not nullable(first):
                    return


def sets_in(part: Part) -> Iterator[frozenset[int]]:
    """The set of each character in a part; of a repeated one as often as it may come."""
    match part:
        case ("chars", codes):
            yield codes
        case ("repeat", body, least, most):
            for _ in range(most or least or 1):
                yield from sets_in(body)
        case (_, parts):
            yield from chain.from_iterable(map(sets_in, parts))


# -- States, and what each of them allows ----------------------------------------------------------

MAX_CHARS = 1000  # in a regex, those repeated counted again
MAX_KEPT = 10_000  # states that an automaton keeps: more are worked out again
State = frozenset[Part]
OVER: State = frozenset()  # behind an end-of-text token


class Automaton:
    """A regex over the tokens below 256 that are no end of text; its states are made as needed.

    From each of them an end can be reached with the tokens that there are.

    Raises:
        ValueError: the regex is none, is too large, or no token can satisfy it; one sentence.
    """

    def __init__(self, regex: str, vocab_size: int, eos_ids: frozenset[int]) -> None:
        known = frozenset(token for token in BYTES - eos_ids if token < vocab_size)
        start, problem = in_bytes(parse(regex), known), ""
        sets = [*islice(sets_in(start), MAX_CHARS + 1)]
        if len(sets) > MAX_CHARS:
            raise ValueError(
                f"regex {shown(regex)} can't be compiled: with all its repeats it has more than "
                f"{MAX_CHARS} characters."
            )
        alike: dict[frozenset[frozenset[int]], list[int]] = {}
        for token in known:
            alike.setdefault(frozenset(codes for codes in sets if token in codes), []).append(token)
        self.columns = [*alike.values()]  # tokens that lead the same way from every state
        self.start, self.eos_ids = State({start}), eos_ids
        self.num_bytes = -(-vocab_size // 32) * 4
        self._ahead: dict[State, tuple[dict[int, State], bytes]] = {}
        if start == NEVER:
            problem = "no text of this vocabulary matches it"
        elif not self.ahead(self.start)[0]:
            problem = "only the empty text matches it, and this model has no end-of-text token"
        if problem:
            raise ValueError(f"no token can satisfy regex {shown(regex)}: {problem}.")

    def ahead(self, state: State) -> tuple[dict[int, State], bytes]:
        """Where each allowed token leads; and these tokens, as ``Grammar`` masks them."""
        if state not in self._ahead:
            moves: dict[int, State] = {}
            for tokens in self.columns:
                if after := State(rest for part in state for rest in rests(part, tokens[0])):
                    moves |= dict.fromkeys(tokens, after)
            if any(map(nullable, state)):
                moves |= dict.fromkeys(self.eos_ids, OVER)
            mask = sum(1 << token for token in moves)
            if len(self._ahead) == MAX_KEPT:
                self._ahead.clear()
            self._ahead[state] = moves, mask.to_bytes(self.num_bytes, "little")
        return self._ahead[state]


build = lru_cache(maxsize=64)(Automaton)  # requests with the same regex share one


# -- One request's place: a stack of states, so that steps can be taken back -----------------------


class TokenGrammar:
    """A ``core.Grammar`` over an automaton."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.states = [automaton.start]  # [num_tokens + 1] after each token that was accepted

    @property
    def is_terminated(self) -> bool:
        """Whether a token was accepted after which no more text can follow."""
        moves, _ = self.automaton.ahead(self.states[-1])
        return len(self.states) > 1 and moves.keys() <= self.automaton.eos_ids

    def accept_token(self, token: int) -> bool:
        """Go on by one token, or say no."""
        moves, _ = self.automaton.ahead(self.states[-1])
        if is_allowed := token in moves:
            self.states.append(moves[token])
        return is_allowed

    def fill_vocab_mask(self) -> bytes:
        """The tokens that lead on from here; none, once an end-of-text token has come."""
        return self.automaton.ahead(self.states[-1])[1]

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        del self.states[max(1, len(self.states) - num_tokens) :]
