"""Stop strings: a request ends as soon as its text contains one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core import FinishReason, Request
from ..core.feature import Feature
from ..core.part import RequestPart

AcceptToken = Callable[[int], bool]
"""Adds a token to the text of one request; true if the text contains a stop string now."""


@dataclass(eq=False)
class StopText(RequestPart):
    """The text of one request so far (``models/tokenizer.py:StopStrings``)."""

    accept_token: AcceptToken

    def on_token(self, token: int) -> FinishReason | None:
        """End the request if its text contains a stop string."""
        return FinishReason.STOP if self.accept_token(token) else None


@dataclass(eq=False)
class StopStringFeature(Feature):
    """Follows the text of each request that has stop strings."""

    follow: Callable[[Sequence[str]], AcceptToken]

    def part_of(self, req: Request) -> StopText | None:
        """Return the text of a request that has stop strings."""
        return StopText(self.follow(req.params.stop)) if req.params.stop else None
