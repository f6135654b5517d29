"""The end of a request, and the state that its admission and its features keep of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from .logprobs import Logprobs


class FinishReason(Enum):
    """Why a request ended. Every request ends exactly once."""

    STOP = "stop"  # it sampled a stop token
    LENGTH = "length"  # it reached max_new_tokens
    ABORT = "abort"  # its client gave it up
    ERROR = "error"  # it was refused, or its step failed; the reason is in Request.error


@dataclass
class Admission:
    """The state of a request that only its admission reads."""

    order: int = 0  # place in the waiting order; breaks every tie
    asked_len: int = 0  # tokens left to compute, as of the last attempt to admit it
    hit_len: int = 0  # positions that the prefix cache gave at the last admission
    retractions: int = 0  # leases that it lost before its end
    bootstrap_room: str = ""  # its name on both sides of ``pd``; unlike an id it never returns


class RequestPart:
    """A feature's state of one request (``feature.py``). Each hook has a plain request's answer."""

    may_mix = True  # its prompt may share a batch with decoding requests
    is_held = False  # it must not be admitted yet
    keeps_late = False  # a token counts although its lease was lost after the launch

    def on_token(self, token: int) -> FinishReason | None:
        """Learn the newest token of ``output_ids``; return a reason if it must be the last one."""
        return None

    def on_retract(self) -> None:
        """Follow the loss of the request's lease; the request will be computed again."""

    def on_transfer(self, logprobs: Logprobs) -> None:
        """Go on from the log-probabilities of another engine (``pd``)."""

    def cacheable_len(self, length: int) -> int:
        """Return how many of the first ``length`` tokens may come from the prefix cache."""
        return length


Part = TypeVar("Part", bound=RequestPart)
