"""Stop strings: a request ends as soon as its text contains one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core import FinishReason, Request
from ..core.feature import Feature
from ..core.part import RequestPart
from ..models.tokenizer import REPLACEMENT, StreamDecoder, TextCodec


class StopStrings(RequestPart):
    """Search for a stop string in an output's text after every token.

    A string that was not there before ends in the newest text, so only a tail is kept: the final
    text of earlier tokens, as far back as the longest string may begin, as in vLLM
    ``v1/engine/detokenizer.py:check_stop_strings``. (SGLang ``schedule_batch.py:Req.tail_str``
    decodes the last ``stop_str_max_len + 1`` tokens, which may be too few.) A U+FFFD at the end may
    be half a character, so it counts once the next token keeps it.

    ``late``: the newest token is left out, so the end comes one token later. In vLLM the
    detokenizer is another process than the engine, which continues until an abort reaches it.
    """

    def __init__(self, tokenizer: TextCodec, strings: Sequence[str], late: bool = False) -> None:
        self.strings = strings
        self.late = late
        self._stream = StreamDecoder(tokenizer)
        self._tail_len = max(map(len, strings)) - 1  # a string may begin this far back
        self._tail = ""
        self._newest: int | None = None  # received, and not looked at yet

    def accept_token(self, token: int) -> bool:
        """Take the next token; return whether one of the strings is complete."""
        if not self.late:
            return self._look(token)
        before, self._newest = self._newest, token
        return before is not None and self._look(before)

    def on_token(self, token: int) -> FinishReason | None:
        """End the request if its text contains a stop string."""
        return FinishReason.STOP if self.accept_token(token) else None

    def _look(self, token: int) -> bool:
        certain = self._tail + self._stream.push(token)
        self._tail = certain[max(0, len(certain) - self._tail_len) :]
        text = certain + self._stream.held_back().rstrip(REPLACEMENT)
        return any(string in text for string in self.strings)


@dataclass(eq=False)
class StopStringFeature(Feature):
    """Follows the text of each request that has stop strings."""

    codec: TextCodec
    late: bool

    def part_of(self, req: Request) -> StopStrings | None:
        """Return the text of a request that has stop strings."""
        return StopStrings(self.codec, req.params.stop, self.late) if req.params.stop else None
