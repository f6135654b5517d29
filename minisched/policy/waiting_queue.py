"""The waiting queue: what it costs to look at depends on who is admitted, not on who waits."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from ..core import Request
from ..trace import Recorder
from .schedule_policy import SchedulePolicy

LEAST = 64  # places; a queue this short is not worth tidying up

Key = tuple[int, str]  # order of arrival, request id: an id may come back, and be another's
Place = tuple[int, int, str]  # rank, and the key


def key_of(req: Request) -> Key:
    """What tells a request from every other one that was ever received."""
    return req.order, req.rid


class WaitingQueue:
    """Requests that hold no memory yet, or none any more (SGLang's ``waiting_queue``, a list).

    Ordered by the policy's rank, then by arrival: a line of those who came behind everybody else,
    and a heap of those who go before somebody in it. A request that was retracted has its old
    place in the order of arrival, so it is ahead of everybody who came later. One that has stale
    output in flight waits aside until it is added again (vLLM's ``skipped_waiting``): it cannot
    be admitted, and stops nobody.
    """

    def __init__(self, policy: SchedulePolicy, recorder: Recorder) -> None:
        self.policy = policy
        self.recorder = recorder
        self.num_added = 0  # so far
        self._waiting: dict[Key, Request] = {}
        self._aside: dict[Key, Request] = {}  # those with stale output in flight
        self._line: deque[Place] = deque()  # this and the heap may still list who has left
        self._heap: list[Place] = []

    def __len__(self) -> int:
        return len(self._waiting) + len(self._aside)

    def __iter__(self) -> Iterator[Request]:
        """In order of arrival."""
        everybody = [*self._waiting.values(), *self._aside.values()]
        return iter(sorted(everybody, key=lambda req: req.order))

    def __contains__(self, req: Request) -> bool:
        return (self._waiting.get(key_of(req)) or self._aside.get(key_of(req))) is req

    def add(self, req: Request) -> None:
        """Let a request wait."""
        if req.num_stale_output_tokens:
            self._aside[key_of(req)] = req
            return
        self._aside.pop(key_of(req), None)
        self.num_added += 1
        self._waiting[key_of(req)] = req
        self._enter((self.policy.rank(req), *key_of(req)))
        if len(self._line) + len(self._heap) > 2 * len(self._waiting) + LEAST:
            self._line = deque(place for place in self._line if place[1:] in self._waiting)
            self._heap = [*{place for place in self._heap if place[1:] in self._waiting}]
            heapq.heapify(self._heap)

    def first(self) -> Request | None:
        """Who is next, as far as a look at the requests alone can tell."""
        return self._head() if self._waiting else None

    def remove(self, req: Request) -> None:
        """Let a request go, if it waits."""
        if req in self:
            self._waiting.pop(key_of(req), None)
            self._aside.pop(key_of(req), None)

    def in_order(self) -> Iterator[Request]:
        """Who is to be admitted next, while each is taken out before the next is asked for.

        The first one that stays ends it: whoever is refused stops those behind.
        """
        by_cache = self._by_cache()
        while self._waiting:
            req = next(by_cache) if by_cache else self._head()
            yield req
            if req in self:
                return

    def _enter(self, place: Place) -> None:
        if not self._line or place > self._line[-1]:
            self._line.append(place)
        else:
            heapq.heappush(self._heap, place)

    def _head(self) -> Request:
        while self._line and self._line[0][1:] not in self._waiting:
            self._line.popleft()
        while self._heap and self._heap[0][1:] not in self._waiting:
            heapq.heappop(self._heap)
        fronts = [places[0] for places in (self._line, self._heap) if places]
        return self._waiting[min(fronts)[1:]]

    def _by_cache(self) -> Iterator[Request] | None:
        if not self.policy.is_cache_aware(len(self)):
            return None
        ordered = self.policy.sort([req for req in self if key_of(req) in self._waiting])
        rids = " ".join(req.rid for req in ordered[:20])
        self.recorder.mark("queue order", policy=self.policy.name, rids=rids)
        return iter(ordered)
