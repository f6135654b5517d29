"""What clients can ask for, and who in the scheduler handles it: one handler for each type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import Output, Request


@dataclass(frozen=True)
class AbortReq:
    """Give up one request, or with ``abort_all`` every one that has not ended.

    ``error`` says why, where it is not the client who asked for it. SGLang
    ``managers/io_struct.py``.
    """

    rid: str = ""
    abort_all: bool = False
    error: str = ""


@dataclass(frozen=True)
class FlushCacheReq:
    """Forget every cached prefix; refused while a request holds memory."""


Message = Request | AbortReq | FlushCacheReq
Handler = Callable[[Any], list[Output]]


class TypeBasedDispatcher:
    """Calls the handler of a message's type (SGLang ``utils.py:TypeBasedDispatcher``).

    ``mapping`` lists types with their handlers; the first that fits is called, and what it gives
    is what clients hear.
    """

    def __init__(self, mapping: Sequence[tuple[type, Handler]]) -> None:
        self.mapping = mapping

    def __call__(self, message: object) -> list[Output]:
        """Handle one message.

        Raises:
            TypeError: nobody handles that type.
        """
        for kind, handle in self.mapping:
            if isinstance(message, kind):
                return handle(message)
        known = ", ".join(kind.__name__ for kind, _ in self.mapping)
        raise TypeError(
            f"a message of type {type(message).__name__} came, but the types handled are {known}."
        )
