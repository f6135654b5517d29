"""Prints an automaton as a table that can be read: a row for each state, a column for tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .automaton import NO, START, Automaton, State


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
