"""A regex over tokens that are bytes: from its tree to a table of states, in which a request walks.

First every character of the regex becomes a *position*, and it is found which may come after which
(``Positions``). A state is the set of positions that the text may stand on, so the next one is
always certain: ``build`` finds all that can be reached and cuts off the dead ends. The table never
changes, so all requests with that regex share it; ``TokenGrammar`` is one request's place in it.
``compile_grammar`` chooses who follows a request's grammar: this, or llguidance.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..core import SamplingParams
from ..core.sampling import Grammar
from ..devices.registry import load
from ..models.base import Tokenizer
from .regex import BYTES, Beyond, Chars, Either, Part, Repeat, Then, parse, shown

# -- Which character of a regex may come after which: Glushkov's construction, no empty moves ------

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
    """Every character of a regex, its repetitions written out; 0 is the place before all of them.

    A text matches if it can step from 0 along ``follow``, each step on a position whose set holds
    the text's next character, and end on a position in ``last``. Source: V. M. Glushkov, "The
    abstract theory of automata", 1961.

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
                return self.place(Then([Chars(frozenset({byte})) for byte in char.encode()]))
            case Then(parts):
                ends = EMPTY
                for each in parts:
                    ends = self.link(ends, self.place(each))
                return ends
            case Either(options):
                nullable, first, last = zip(*map(self.place, options), strict=True)
                return Ends(any(nullable), frozenset().union(*first), frozenset().union(*last))
            case Repeat(body, least, most):
                ends = EMPTY
                for _ in range(least):
                    ends = self.link(ends, self.place(body))
                for _ in range(1 if most is None else most - least):  # these may be left out
                    copy = self.place(body)
                    if most is None:  # it may come again
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


# -- The table: a row for each state, a column for tokens that go the same way from every state ----

MAX_STATES = 1000
START = 0  # the first state
NO = -1  # in a cell: not allowed here
OVER = 1  # the state behind an end-of-text token

State = frozenset[int]  # of positions; empty once an end-of-text token has come
Table = list[list[int]]


class Automaton:
    """A regex over tokens. ``table[state][column]`` is the next state, or ``NO``.

    ``columns`` says which tokens are in a column; the last one is that of the end-of-text tokens,
    which lead from an accepting state to one in which all is over.
    """

    def __init__(self, columns: Sequence[Sequence[int]], table: Table, vocab_size: int) -> None:
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
    try:
        positions = Positions(parse(regex))
        columns: dict[State, list[int]] = {}  # tokens by the positions that they can stand on
        for token in sorted(token for token in BYTES - eos_ids if token < vocab_size):
            fits = frozenset(at for at, codes in enumerate(positions.chars) if token in codes)
            if fits:
                columns.setdefault(fits, []).append(token)
        table = explore(positions, list(columns))
    except TooLarge as error:
        raise ValueError(f"regex {shown(regex)} can't be compiled: {error}.") from error
    alive, problem = completable(table), ""
    if START not in alive:
        problem = "no text of this vocabulary matches it"
    elif not eos_ids and not alive.intersection(table[START][:-1]):
        problem = "only the empty text matches it, and this model has no end-of-text token"
    if problem:
        raise ValueError(f"no token can satisfy regex {shown(regex)}: {problem}.")
    number = {state: at for at, state in enumerate(sorted(alive))}
    table = [[number.get(cell, NO) for cell in table[state]] for state in number]
    return Automaton([*columns.values(), sorted(eos_ids)], table, vocab_size)


def explore(positions: Positions, columns: Sequence[State]) -> Table:
    """All states that can be reached, and where each column leads from them.

    Raises:
        TooLarge: there are more than MAX_STATES.
    """
    states: list[State] = [frozenset({0}), frozenset()]
    number = {state: at for at, state in enumerate(states)}
    table: Table = []
    for state in states:  # which grows meanwhile
        ahead = frozenset[int]().union(*(positions.follow[at] for at in state))
        row = []
        for fits in columns:
            reached = ahead & fits
            if reached and reached not in number:
                number[reached] = len(states)
                states.append(reached)
            row.append(number[reached] if reached else NO)
        row.append(NO if state.isdisjoint(positions.last) else OVER)
        table.append(row)
        if len(states) > MAX_STATES:
            raise TooLarge(f"its automaton has more than {MAX_STATES} states")
    return table


def completable(table: Table) -> set[int]:
    """The states from which an end can be reached: walk back from where all is over."""
    before: dict[int, set[int]] = {}
    for state, row in enumerate(table):
        for cell in row:
            before.setdefault(cell, set()).add(state)
    alive, walk = {OVER}, [OVER]
    while walk:
        walk += (found := before.get(walk.pop(), set()) - alive)
        alive |= found
    return alive


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


# -- Who follows a request's grammar: the table here, or llguidance --------------------------------

BACKEND = ("minisched.grammar.llguidance_grammar", "LLGuidanceGrammar", "grammar")


def compile_grammar(
    params: SamplingParams, vocab_size: int, eos_ids: frozenset[int], tokenizer: Tokenizer | None
) -> Grammar:
    """The grammar of one request that has one, at its start.

    Where the model has no tokenizer a token is a byte, and a regex becomes a table of our own;
    anything else is llguidance's. What requests can share is made once.

    Raises:
        ValueError: it can't be compiled, or no token can satisfy it; one sentence that says why.
    """
    kind, text = ("regex", params.regex) if params.json_schema is None else (
        "json_schema", params.json_schema)  # fmt: skip
    assert text is not None, "who has no grammar needs none compiled"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{kind} {shown(text)} holds half a character, which is no text."
        ) from error
    eos_ids = frozenset(token for token in eos_ids if token < vocab_size)
    if tokenizer is None and kind == "regex":
        return TokenGrammar(build(text, vocab_size, eos_ids))
    if tokenizer is None and vocab_size < 256:
        raise ValueError(
            f"json_schema needs a model with a tokenizer, or with all 256 bytes; this one has "
            f"{vocab_size} tokens."
        )
    module, name, extra = BACKEND
    made: Grammar = load(module, name, extra, kind)(kind, text, vocab_size, eos_ids, tokenizer)
    return made
