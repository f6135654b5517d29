"""The states that an output may be in, as a table: a row for each state, a column for tokens.

For a vocabulary of which token i is the character i. A state is the set of positions of the regex
that the text may stand on (``positions.py``), so the next one is always certain. ``build.py`` makes
it; ``show.py`` prints it.
"""

from __future__ import annotations

from collections.abc import Sequence

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
