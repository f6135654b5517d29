"""Looks for stop strings in a text that grows token by token."""

from __future__ import annotations

from collections.abc import Sequence

from .tokenizer import StreamDecoder, TextCodec


class StopStrings:
    """Whether an output's text has a stop string in it, asked after every token.

    A string that was not there before ends in the newest text, so only a tail is kept: the text of
    tokens that no later one can change, as far back as the longest string may begin. (SGLang
    ``schedule_batch.py:Req.tail_str`` decodes the last ``stop_str_max_len + 1`` tokens instead;
    where the model spells a string with more tokens than the tokenizer would, that is too few.
    vLLM ``v1/engine/detokenizer.py:check_stop_strings`` searches as far back as here.)

    ``late``: the newest token is left out, so that the end comes one token later. In vLLM the
    detokenizer is another process than the engine, which goes on until an abort reaches it.
    """

    def __init__(self, tokenizer: TextCodec, strings: Sequence[str], late: bool = False) -> None:
        self.strings = strings
        self.late = late
        self._stream = StreamDecoder(tokenizer)
        self._tail_len = max(map(len, strings)) - 1  # a string may begin so far back
        self._tail = ""
        self._newest: int | None = None  # said, and not looked at yet

    def accept_token(self, token: int) -> bool:
        """Hear the next token; whether one of the strings is complete."""
        if not self.late:
            return self._look(token)
        before, self._newest = self._newest, token
        return before is not None and self._look(before)

    def _look(self, token: int) -> bool:
        certain = self._tail + self._stream.push(token)
        self._tail = certain[max(0, len(certain) - self._tail_len) :]
        text = certain + self._stream.held_back()
        return any(string in text for string in self.strings)
