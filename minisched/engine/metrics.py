"""The waiting times of clients: figures of each request, and of all together."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from ..core import FinishReason, Outputs, Request, ScheduleBatch
from .frontend import arrival_of


class Percentiles(NamedTuple):
    """Percentiles by nearest rank: each is a value that occurred."""

    p50: int
    p90: int
    p99: int


def percentiles(values: Iterable[int]) -> Percentiles | None:
    """Return the percentiles of ``values``, or None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    ranks = (-(-len(ordered) * percent // 100) for percent in (50, 90, 99))
    return Percentiles(*(ordered[rank - 1] for rank in ranks))


@dataclass(slots=True)
class RequestMetrics:
    """The times of one request, in nanoseconds on the device's clock; None: it never happened.

    The time of a token is that of its delivery. ``queue_ns`` plus computation is ``ttft_ns``.
    """

    rid: str
    arrival: int
    prompt_tokens: int
    scheduled: int | None = None  # committed to a batch for the first time
    first_token: int | None = None
    last_token: int | None = None
    end: int | None = None
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0  # from the prefix cache, at the first admission
    output_tokens: int = 0
    retractions: int = 0
    itls: array[int] = field(default_factory=lambda: array("q"))  # between neighbouring tokens
    room: str = ""  # see Request

    @property
    def ttft_ns(self) -> int | None:
        """Return the time from arrival to the first token."""
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def queue_ns(self) -> int | None:
        """Return the time from arrival to the first batch."""
        return None if self.scheduled is None else self.scheduled - self.arrival

    def on_token(self, now: int) -> None:
        """Count a token that was delivered."""
        self.output_tokens += 1
        if self.last_token is None:
            self.first_token = now
        else:
            self.itls.append(now - self.last_token)
        self.last_token = now


@dataclass
class Metrics:
    """Collects from the engine; cheap enough to be always on.

    A request that has ended keeps eight bytes for each of its tokens. ``started``: when the engine
    was made. No arrival counts as earlier, whatever time the request has.
    """

    started: int = 0
    ended: list[RequestMetrics] = field(default_factory=list)  # in order of their ends
    # By id, in order: one may return before the end of the request that had it is delivered.
    live: dict[str, deque[tuple[Request, RequestMetrics]]] = field(default_factory=dict)
    admitted_tokens: int = 0  # of all admissions, also of those after a retraction
    cached_tokens: int = 0  # how many of them the prefix cache gave
    output_tokens: int = 0
    first_arrival: int | None = None
    last_output: int = 0

    def on_received(self, req: Request, now: int) -> None:
        """Begin the figures of a request that the scheduler has queued or refused.

        An interrupt ends requests before their time of arrival: they arrive now.
        """
        arrival = min(max(arrival_of(req), self.started), now)
        metrics = RequestMetrics(
            req.name, arrival, req.known_len, room=req.admission.bootstrap_room
        )
        if self.first_arrival is None or arrival < self.first_arrival:
            self.first_arrival = arrival
        if req.finished:
            self._end(req, metrics, now)
            return
        self.live.setdefault(req.rid, deque()).append((req, metrics))

    def on_batch(self, batch: ScheduleBatch, now: int) -> None:
        """Count the prompts of a batch that has just been committed."""
        for index in range(batch.num_extend_reqs):
            if batch.starts[index] > batch.reqs[index].admission.hit_len:
                continue  # a later chunk
            req, metrics = self.live[batch.reqs[index].rid][-1]
            self.admitted_tokens += req.known_len
            self.cached_tokens += req.admission.hit_len
            if metrics.scheduled is None:
                metrics.scheduled, metrics.cached_tokens = now, req.admission.hit_len

    def on_outputs(self, outputs: Outputs, now: int) -> None:
        """Count outputs that clients receive."""
        for at, (rid, token) in enumerate(zip(outputs.rids, outputs.tokens, strict=True)):
            entries, more = self.live.get(rid), outputs.more.get(at)
            if entries is None or (more and more.namesake):
                continue  # it was refused
            req, metrics = entries[0]
            if token is not None:
                self.output_tokens += 1
                self.last_output = now
                metrics.on_token(now)
            if more and more.finish_reason and req.finished:  # otherwise a refused one has its id
                entries.popleft()
                if not entries:
                    del self.live[rid]
                self._end(req, metrics, now)

    def _end(self, req: Request, metrics: RequestMetrics, now: int) -> None:
        metrics.end, metrics.finish_reason = now, req.finish_reason
        metrics.retractions = req.admission.retractions
        self.ended.append(metrics)

    @property
    def num_finished(self) -> int:
        """Return the number of requests that got all their tokens."""
        wanted = (FinishReason.STOP, FinishReason.LENGTH)
        return sum(metrics.finish_reason in wanted for metrics in self.ended)

    @property
    def num_retractions(self) -> int:
        """Return the number of retractions of the requests that have ended."""
        return sum(metrics.retractions for metrics in self.ended)

    @property
    def ttft(self) -> Percentiles | None:
        """Time to first token, of ended requests that had one."""
        return percentiles(m.ttft_ns for m in self.ended if m.ttft_ns is not None)

    @property
    def itl(self) -> Percentiles | None:
        """Inter-token latency, over all tokens of ended requests but their first ones."""
        return percentiles(chain.from_iterable(metrics.itls for metrics in self.ended))

    @property
    def queue(self) -> Percentiles | None:
        """Time to the first batch, of ended requests that got there."""
        return percentiles(m.queue_ns for m in self.ended if m.queue_ns is not None)

    @property
    def cache_hit_rate(self) -> float:
        """Share of the tokens of all admissions that the prefix cache gave."""
        return self.cached_tokens / self.admitted_tokens if self.admitted_tokens else 0.0

    @property
    def throughput(self) -> float:
        """Tokens a second, from the first arrival to the last token."""
        duration = self.last_output - (self.first_arrival or 0)
        return self.output_tokens * 1e9 / duration if duration > 0 else 0.0
