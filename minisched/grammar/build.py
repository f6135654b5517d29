"""From a regex to its automaton: follow all positions at once, then cut off the dead ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from ..core import SamplingParams
from ..core.request import Grammar
from ..devices.registry import load
from ..models.base import Tokenizer
from .regex import BYTES, NO, START, Automaton, Positions, State, TooLarge, parse, shown

# -- One request's place in an automaton: a stack of states, so that steps can be taken back -------


class TokenGrammar:
    """A ``core.Grammar`` over an automaton: every method is a look-up or two."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self.states = [START]  # [num_tokens + 1] after each token that was accepted

    @property
    def state(self) -> int:
        """Where the output is now."""
        return self.states[-1]

    @property
    def is_terminated(self) -> bool:
        """Whether a token was accepted after which no more text can follow."""
        return len(self.states) > 1 and self.automaton.is_final(self.state)

    def accept_token(self, token: int) -> bool:
        """Go on by one token, or say no."""
        state = self.automaton.next_state(self.state, token)
        if state != NO:
            self.states.append(state)
        return state != NO

    def fill_vocab_mask(self) -> bytes:
        """The tokens that lead on from here; none, once an end-of-text token has come."""
        return self.automaton.masks[self.state]

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        del self.states[max(1, len(self.states) - num_tokens) :]


# -- Prints an automaton as a table that can be read: a row for each state, a column for tokens ----


def show(automaton: Automaton) -> str:
    """The table as text: where each state stands in the regex, and where each column leads.

    ``end`` is the column of the end-of-text tokens; what can't come is a dot.
    """
    names = [*map(span, automaton.columns[:-1]), "end"]
    lines = [["state", "stands on", *names]]
    for state, row in enumerate(automaton.table):
        cells = ["." if cell == NO else str(cell) for cell in row]
        lines.append([str(state), place(state, automaton.states[state]), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def place(state: int, positions: State) -> str:
    """The positions of the regex that a state stands on, counted from 1."""
    if not positions:
        return "over"
    return "start" if state == START else ",".join(map(str, sorted(positions)))


def span(tokens: Iterable[int]) -> str:
    """Tokens as characters, neighbours as a range: ``0-9 a-f``; what can't be seen is \\xHH."""
    runs: list[list[int]] = []
    for token in sorted(tokens):
        if runs and token == runs[-1][-1] + 1:
            runs[-1].append(token)
        else:
            runs.append([token])
    return " ".join(map(run_text, runs))


def run_text(run: Sequence[int]) -> str:
    """One run of neighbours."""
    ends = [chr(t) if 32 < t < 127 else f"\\x{t:02x}" for t in (run[0], run[-1])]
    return ends[0] if len(run) == 1 else ends[0] + ("-" if len(run) > 2 else "") + ends[1]


MAX_STATES = 1000
OVER: State = frozenset()  # behind an end-of-text token
OVER_AT = START + 1

Table = list[list[int]]


@lru_cache(maxsize=64)
def build(regex: str, vocab_size: int, eos_ids: frozenset[int]) -> Automaton:
    """The automaton of a regex, over the tokens below 256 that are no end of text.

    From each of its states an end can be reached with the tokens that there are.

    Raises:
        ValueError: the regex is none, is too large, or no token can satisfy it; one sentence.
    """
    text = sorted(token for token in BYTES - eos_ids if token < vocab_size)
    try:
        positions = Positions(parse(regex))
        columns = group(positions, text)
        states, table = explore(positions, list(columns))
    except TooLarge as error:
        raise ValueError(f"regex {shown(regex)} can't be compiled: {error}.") from error
    alive = completable(table)
    problem = unsatisfiable(table, alive, eos_ids)
    if problem:
        raise ValueError(f"no token can satisfy regex {shown(regex)}: {problem}.")
    states, table = keep(alive, states, table)
    return Automaton(states, [*columns.values(), sorted(eos_ids)], table, vocab_size)


def group(positions: Positions, text: Sequence[int]) -> dict[State, list[int]]:
    """Tokens by the positions they can stand on: all tokens of a group always go the same way."""
    groups: dict[State, list[int]] = {}
    for token in text:
        fits = frozenset(at for at, codes in enumerate(positions.chars) if token in codes)
        if fits:
            groups.setdefault(fits, []).append(token)
    return groups


def explore(positions: Positions, columns: Sequence[State]) -> tuple[list[State], Table]:
    """All states that can be reached, and where each column leads from them.

    Raises:
        TooLarge: there are more than MAX_STATES.
    """
    states: list[State] = [frozenset({0}), OVER]
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
        row.append(NO if state.isdisjoint(positions.last) else OVER_AT)
        table.append(row)
        if len(states) > MAX_STATES:
            raise TooLarge(f"its automaton has more than {MAX_STATES} states")
    return states, table


def completable(table: Table) -> set[int]:
    """The states from which an end can be reached: walk back from where all is over."""
    before: dict[int, set[int]] = {}
    for state, row in enumerate(table):
        for cell in row:
            before.setdefault(cell, set()).add(state)
    alive, walk = {OVER_AT}, [OVER_AT]
    while walk:
        walk += (found := before.get(walk.pop(), set()) - alive)
        alive |= found
    return alive


def unsatisfiable(table: Table, alive: set[int], eos_ids: frozenset[int]) -> str:
    """Why no token can satisfy the regex; empty if one can."""
    if START not in alive:
        return "no text of this vocabulary matches it"
    if not eos_ids and not alive.intersection(table[START][:-1]):
        return "only the empty text matches it, and this model has no end-of-text token"
    return ""


def keep(alive: set[int], states: Sequence[State], table: Table) -> tuple[list[State], Table]:
    """Only those states, numbered anew in their order."""
    number = {state: at for at, state in enumerate(sorted(alive))}
    rows = [[number.get(cell, NO) for cell in table[state]] for state in number]
    return [states[state] for state in number], rows


# -- Chooses who reads a request's grammar: the automaton here, or llguidance ----------------------

BACKEND = ("minisched.grammar.llguidance_grammar", "LLGuidanceGrammar", "grammar")


def compile_grammar(
    params: SamplingParams, vocab_size: int, eos_ids: frozenset[int], tokenizer: Tokenizer | None
) -> Grammar:
    """The grammar of one request that has one, at its start.

    Where the model has no tokenizer a token is a byte, and a regex becomes a table of our own
    (``build.py``); anything else is llguidance's. What requests can share is made once.

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
