r"""A regex over the text that a request may say: its language, and a table of states for bytes.

Python's own parser reads it, so that it means what ``re.fullmatch`` means with ``re.ASCII``. Of
what ``re`` knows, that is refused which is no regular language (``(a)\1``, ``(?=a)``), changes what
signs mean (``(?i)``), or says nothing where all of the output has to match anyway (``^``, ``$``).
What is left is a tree of a few kinds of parts (``Part``).

Where tokens are bytes, a request walks through states. A state is what may still follow, a regex
again: the *derivative* of the one before it by the byte that came (J. A. Brzozowski, "Derivatives
of regular expressions", 1964). Nothing that leads nowhere is ever made, so there are no dead ends
to look for. The table of states never changes, and all requests with that regex share it.

What ``.``, ``\D \W \S`` and ``[^a]`` take of a character beyond ASCII is one byte here, and all of
it where llguidance follows the regex over a model's own tokens; of ASCII both are the same.
"""

from __future__ import annotations

import re
import string
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
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


# -- Derivatives: what may follow a byte -----------------------------------------------------------

DERIVED = 1 << 14  # that are kept: states share most of their parts


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


@lru_cache(DERIVED)
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


@lru_cache(DERIVED)
def derive(part: Part, byte: int) -> Part:
    """What may follow a byte: the rests of all texts of a part that begin with it."""
    match part:
        case ("chars", codes):
            return EMPTY if byte in codes else NEVER
        case ("either", options):
            return either(derive(each, byte) for each in options)
        case ("repeat", body, least, most):
            more = repeat(body, max(0, least - 1), None if most is None else most - 1)
            return then([derive(body, byte), more])
        case ("then", parts):
            return either(begun(parts, byte))
    raise AssertionError(part)


def begun(parts: Sequence[Part], byte: int) -> Iterator[Part]:
    """The byte is of the first part, or of the next one where those before it may be empty."""
    for at, part in enumerate(parts):
        yield then([derive(part, byte), *parts[at + 1 :]])
        if not nullable(part):
            return


# -- The table: a row for each state, a column for tokens that go the same way from every state ----

MAX_STATES = 1000
MAX_SETS = 1000  # of characters, in a state; with both, the worst regex takes a second or two
START, OVER = 0, 1  # the first state, and the one behind an end-of-text token
NO = -1  # in a cell: not allowed here


class Automaton:
    """A regex over tokens. ``table[state][column]`` is the next state, or ``NO``.

    ``columns`` says which tokens are in a column; the last one is that of the end-of-text tokens,
    which lead from an accepting state to one in which all is over.
    """

    def __init__(
        self, columns: Sequence[Sequence[int]], table: list[list[int]], vocab_size: int
    ) -> None:
        self.table = table
        self.column_of = {token: at for at, tokens in enumerate(columns) for token in tokens}
        bits = [sum(1 << token for token in tokens) for tokens in columns]
        num_bytes = -(-vocab_size // 32) * 4
        self.masks: list[bytes] = []  # [num_states] see Grammar.fill_vocab_mask
        for row in table:
            allowed = sum(bit for bit, cell in zip(bits, row, strict=True) if cell != NO)
            self.masks.append(allowed.to_bytes(num_bytes, "little"))


@lru_cache(maxsize=64)
def build(regex: str, vocab_size: int, eos_ids: frozenset[int]) -> Automaton:
    """The automaton of a regex, over the tokens below 256 that are no end of text.

    From each of its states an end can be reached with the tokens that there are.

    Raises:
        ValueError: the regex is none, is too large, or no token can satisfy it; one sentence.
    """
    known = frozenset(token for token in BYTES - eos_ids if token < vocab_size)
    start, problem = in_bytes(parse(regex), known), ""
    sets, columns = set(sets_in(start)), dict[frozenset[frozenset[int]], list[int]]()
    for token in sorted(known):
        fits = frozenset(codes for codes in sets if token in codes)
        if fits:
            columns.setdefault(fits, []).append(token)
    number: dict[Part | None, int] = {start: START, None: OVER}
    table: list[list[int]] = []
    states: list[Part | None] = [*number]
    for state in states:  # which grows meanwhile
        row = []
        for tokens in columns.values():
            ahead = NEVER if state is None else derive(state, tokens[0])
            if ahead != NEVER and ahead not in number:
                number[ahead] = len(states)
                states.append(ahead)
            row.append(number.get(ahead, NO))
        row.append(OVER if state is not None and nullable(state) else NO)
        table.append(row)
        is_large = sum(1 for _ in sets_in(states[-1] or EMPTY)) > MAX_SETS
        if is_large or len(states) > MAX_STATES:
            what = f"{MAX_SETS} characters in a state" if is_large else f"{MAX_STATES} states"
            raise ValueError(
                f"regex {shown(regex)} can't be compiled: its automaton has more than {what}."
            )
    if start == NEVER:
        problem = "no text of this vocabulary matches it"
    elif not eos_ids and set(table[START][:-1]) <= {NO}:
        problem = "only the empty text matches it, and this model has no end-of-text token"
    if problem:
        raise ValueError(f"no token can satisfy regex {shown(regex)}: {problem}.")
    return Automaton([*columns.values(), sorted(eos_ids)], table, vocab_size)


def sets_in(part: Part) -> Iterator[frozenset[int]]:
    """All sets of characters in a part."""
    if part[0] == "chars":
        yield part[1]
    else:
        for each in [part[1]] if part[0] == "repeat" else part[1]:
            yield from sets_in(each)


# -- One request's place in a table: a stack of states, so that steps can be taken back ------------


class TokenGrammar:
    """A ``core.Grammar`` over an automaton: every method is a look-up or two."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.states = [START]  # [num_tokens + 1] after each token that was accepted

    @property
    def is_terminated(self) -> bool:
        """Whether a token was accepted after which no more text can follow."""
        ahead = self.automaton.table[self.states[-1]][:-1]
        return len(self.states) > 1 and all(cell == NO for cell in ahead)

    def accept_token(self, token: int) -> bool:
        """Go on by one token, or say no."""
        column = self.automaton.column_of.get(token)
        state = NO if column is None else self.automaton.table[self.states[-1]][column]
        if state != NO:
            self.states.append(state)
        return state != NO

    def fill_vocab_mask(self) -> bytes:
        """The tokens that lead on from here; none, once an end-of-text token has come."""
        return self.automaton.masks[self.states[-1]]

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        del self.states[max(1, len(self.states) - num_tokens) :]
