"""Where requests come from and outputs go: stands in for the HTTP server and its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..core import Output, Request


class Arrived(NamedTuple):
    """What one look at the inbox gave."""

    requests: list[Request]
    aborts: list[str]


class Frontend:
    """Requests ordered by arrival time, aborts, and a callback that hears every output."""

    def __init__(
        self,
        requests: Iterable[Request] = (),
        on_output: Callable[[Output], None] = lambda output: None,
    ) -> None:
        self.inbox = sorted(requests, key=lambda req: req.arrival_time)  # a stable order
        self.aborts: list[str] = []
        self.sent: list[str] = []  # ids of everything handed over so far
        self.interrupted = False
        self.on_output = on_output

    def push(self, request: Request) -> None:
        """Send one more request; it arrives at once, whatever its arrival time."""
        request.arrival_time = 0
        self.inbox.insert(0, request)

    def abort(self, rid: str) -> None:
        """Give a request up."""
        self.aborts.append(rid)

    def interrupt(self) -> None:
        """Give everything up, also what has not arrived yet."""
        self.interrupted = True

    def take(self, now: int) -> Arrived:
        """Everything that has arrived by ``now``."""
        interrupted = self.interrupted  # read once: a signal may set it at any moment
        arrived = [req for req in self.inbox if interrupted or req.arrival_time <= now]
        self.inbox = self.inbox[len(arrived) :]  # the inbox is ordered, so they came first
        self.sent += [req.rid for req in arrived]
        aborts, self.aborts = self.aborts, []
        if interrupted:
            aborts, self.sent = self.sent, []
        return Arrived(arrived, aborts)

    @property
    def next_arrival(self) -> int | None:
        """When the next request comes, or None."""
        return self.inbox[0].arrival_time if self.inbox else None
