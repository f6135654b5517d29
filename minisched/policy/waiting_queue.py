"""The waiting queue: a list that each pass sorts, if its order asks for that."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from ..core import Request
from ..trace import Recorder
from .schedule_policy import CACHE_AWARE, SchedulePolicy


class WaitingQueue:
    """Requests that hold no memory yet, or none any more (SGLang's ``waiting_queue``, a list).

    A pass sorts it in place and admits from its head; first come, first served sorts nothing, and
    costs what is admitted, however many wait. A request that has lost its memory waits behind all
    others, as in SGLang, or in its ``old_place`` (``policy/rules.py:retracted_waits``). One that
    has stale output in flight waits aside until it is added again (vLLM's ``skipped_waiting``): it
    cannot be admitted, and stops nobody.
    """

    def __init__(self, policy: SchedulePolicy, recorder: Recorder, old_place: bool = False) -> None:
        self.policy = policy
        self.recorder = recorder
        self.old_place = old_place
        self.num_added = 0  # so far
        self._waiting: OrderedDict[Request, None] = OrderedDict()
        self._aside: dict[Request, None] = {}  # those with stale output in flight

    def __len__(self) -> int:
        return len(self._waiting) + len(self._aside)

    def __iter__(self) -> Iterator[Request]:
        """In the order of the last pass, then who came since, then those aside."""
        return iter([*self._waiting, *self._aside])

    def __contains__(self, req: Request) -> bool:
        return req in self._waiting or req in self._aside

    def add(self, req: Request) -> None:
        """Let a request wait: at the end, unless it had a place and that is kept."""
        if req.num_stale_output_tokens:
            self._aside[req] = None
            return
        self._aside.pop(req, None)
        goes_back = self.old_place and req.retractions > 0
        if not goes_back:
            req.order = self.num_added
        self.num_added += 1
        self._waiting[req] = None
        if goes_back:
            self._reorder(sorted(self._waiting, key=lambda req: (self.policy.rank(req), req.order)))

    def first(self) -> Request | None:
        """Who is next, as far as the last pass can tell."""
        return next(iter(self._waiting), None)

    def remove(self, req: Request) -> None:
        """Let a request go, if it waits."""
        self._waiting.pop(req, None)
        self._aside.pop(req, None)

    def in_order(self) -> Iterator[Request]:
        """One pass: sorted now; who is to be admitted next, while each is taken out before that.

        The first one that stays ends it: whoever is refused stops those behind. Who is added
        meanwhile waits for the next pass.
        """
        if self.policy.sorts(len(self)):
            self._reorder(self.policy.sort(list(self._waiting)))
            if self.policy.name in CACHE_AWARE:
                rids = " ".join(req.rid for req in [*self._waiting][:20])
                self.recorder.mark("queue order", policy=self.policy.name, rids=rids)
        self.policy.refresh(self._waiting)
        return self._heads(self.num_added)

    def _heads(self, num_added: int) -> Iterator[Request]:
        while (req := self.first()) is not None and req.order < num_added:
            yield req
            if req in self:
                return

    def _reorder(self, ordered: list[Request]) -> None:
        self._waiting = OrderedDict.fromkeys(ordered)
