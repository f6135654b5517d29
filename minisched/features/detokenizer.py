"""Text that appears while tokens arrive (SGLang ``managers/detokenizer_manager.py``)."""

from __future__ import annotations

from ..models.tokenizer import TextCodec

REPLACEMENT = "\ufffd"  # the text of an incomplete UTF-8 character


class StreamDecoder:
    """Return the text that each new token adds, never half a character.

    The results of ``push``, then ``finish``, add up to ``decode`` of all ids. Text that ends in
    U+FFFD is held back, because the next token may complete it. Only new tokens are decoded again,
    in their context (SGLang's ``surr_offset`` and ``read_offset``).
    """

    def __init__(self, tokenizer: TextCodec) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._context = 0  # decoding starts here, to give the first new token a neighbour
        self._emitted = 0  # number of tokens with returned text

    def push(self, token: int) -> str:
        """Return the text that is certain now; empty while a character is incomplete."""
        self._ids.append(token)
        text = self._fresh_text()
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._context, self._emitted = self._emitted, len(self._ids)
        return text

    def held_back(self) -> str:
        """Return the text that is not certain yet; a later token may complete it."""
        return self._fresh_text() if self._emitted < len(self._ids) else ""

    def finish(self) -> str:
        """Return the text that was held back; an incomplete character reads as U+FFFD."""
        text = self._fresh_text()
        self._context = self._emitted = len(self._ids)
        return text

    def _fresh_text(self) -> str:
        """Return the text of the tokens that were not emitted, in their context."""
        before = self._tokenizer.decode(self._ids[self._context : self._emitted])
        return self._tokenizer.decode(self._ids[self._context :])[len(before) :]
