"""From a regex to its automaton: follow all positions at once, then cut off the dead ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .automaton import NO, START, Automaton, State
from .positions import Positions, TooLarge
from .regex import parse
from .regex_chars import BYTES, shown

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
