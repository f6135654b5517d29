"""What the two sides of PD separation say to each other, of a request by its room."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from ..core import Logprobs
from ..trace import Program


@dataclass(frozen=True)
class Metadata:
    """Decode to prefill: pages are reserved, KV may go to these slots (``send_metadata``)."""

    room: str
    slots: list[int]


@dataclass(frozen=True)
class Abort:
    """Decode to prefill: nobody wants it any more."""

    room: str


@dataclass(frozen=True)
class Computed:
    """Prefill to decode: a prompt is computed, and its pages held until somebody wants them."""

    room: str


@dataclass
class Transferred:
    """Prefill to decode, once for every request: all its KV has arrived, or it failed.

    ``token`` None: it failed. ``slice_id``: of the transfer that brought the last of it.
    ``logprobs``, if wanted: the token's and the prompt's (SGLang ``MetadataBuffers``).
    """

    room: str
    token: int | None
    error: str = ""
    slice_id: int = 0
    logprobs: Logprobs | None = None


Message = Metadata | Abort | Computed | Transferred


@dataclass
class Mailbox:
    """Messages, each with the time at which it can be read, and what it comes after.

    That is a signal, or the transfer which brings it: whoever takes it has waited for that.
    """

    _heap: list[tuple[int, int, Message, int]] = field(default_factory=list)
    _num_posted: int = 0

    def post(self, time: int, message: Message, after: int = 0) -> None:
        """Send a message that arrives at ``time``, after the signal or slice of that id."""
        self._num_posted += 1
        heapq.heappush(self._heap, (time, self._num_posted, message, after))

    def take(self, now: int, program: Program) -> list[Message]:
        """What has arrived by now, in order of time; ``program`` is the reader's."""
        messages = []
        while self._heap and self._heap[0][0] <= now:
            _, _, message, after = heapq.heappop(self._heap)
            program.wait(after)
            messages.append(message)
        return messages

    @property
    def next_time(self) -> int | None:
        """When the next message arrives, or None."""
        return self._heap[0][0] if self._heap else None
