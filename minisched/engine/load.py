"""How busy the scheduler was on average: weighted by time, so that no step counts twice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Load:
    """Sums over the time in which any request held memory, in nanoseconds times the thing summed.

    What is observed holds until it is observed again. Exact: integers, however long the run.
    """

    busy_ns: int = 0
    _token_ns: int = 0
    _running_ns: int = 0
    _waiting_ns: int = 0
    _seen: tuple[int, int, int, int] = (0, 0, 0, 0)  # time, KV slots used, running, waiting

    def observe(self, now: int, used_tokens: int, running: int, waiting: int) -> None:
        """From ``now`` on: this many KV slots are held, and so many requests run and wait."""
        since, used_before, running_before, waiting_before = self._seen
        if used_before and now > since:
            self.busy_ns += now - since
            self._token_ns += used_before * (now - since)
            self._running_ns += running_before * (now - since)
            self._waiting_ns += waiting_before * (now - since)
        self._seen = (now, used_tokens, running, waiting)

    @property
    def used_tokens(self) -> float:
        """KV slots held, on average."""
        return self._token_ns / self.busy_ns if self.busy_ns else 0.0

    @property
    def running(self) -> float:
        """Requests that decode, on average."""
        return self._running_ns / self.busy_ns if self.busy_ns else 0.0

    @property
    def waiting(self) -> float:
        """Requests in the waiting queue, on average."""
        return self._waiting_ns / self.busy_ns if self.busy_ns else 0.0
