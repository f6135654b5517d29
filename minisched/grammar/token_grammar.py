"""One request's place in an automaton: a stack of states, so that steps can be taken back."""

from __future__ import annotations

from .automaton import NO, START, Automaton


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
