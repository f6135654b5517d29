"""What the scheduler asks of a grammar: how far one request's output has come in it."""

from __future__ import annotations

from typing import Protocol


class Grammar(Protocol):
    """One request's state in its grammar (SGLang ``constrained/base_grammar_backend.py``).

    The mask for the next token needs the last one: this is why sampling has to wait for history.
    The bit of a token is set exactly where ``accept_token`` takes it. An end-of-text token is
    allowed exactly where the grammar accepts an end; after it nothing is.
    """

    @property
    def is_terminated(self) -> bool:
        """Whether the output is complete and no more text can follow.

        Never before its first token: even the empty text needs an end-of-text token to say so.
        """
        ...

    def accept_token(self, token: int) -> bool:
        """Go on by one token; False, and nothing changes, where it is not allowed."""
        ...

    def fill_vocab_mask(self) -> bytes:
        """Which tokens may come next: bit i % 8 of byte i // 8; ceil(vocab / 32) * 4 bytes."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens that were accepted, as far as there are any."""
        ...
