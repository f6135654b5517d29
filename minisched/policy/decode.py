"""The set of requests that produce tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core import ChunkedReq, Request
from ..memory import PageAllocator


@dataclass
class DecodeManager:
    """One set of running requests (mini-sglang ``scheduler/decode.py``).

    A request leaves the set only when it finishes or loses its lease. Whether it may run *now* is
    computed at each step and never stored: a set that drops a request on an optimistic length
    can forget it for ever.

    ``run_ahead``: a row may be launched before the host knows its input token.
    ``foresee_length``: a request is not launched past ``max_new_tokens``. Designs that only look
    at ``finished`` (SGLang's overlap loop) launch such a row once and waste it.
    ``new_token_ratio``: the share of a request's remaining tokens for which admission keeps
    memory back. 1 is mini-sglang's full reservation, which never retracts.
    """

    allocator: PageAllocator
    run_ahead: bool = False
    foresee_length: bool = True
    new_token_ratio: float = 1.0
    running_reqs: set[Request] = field(default_factory=set)

    def filter_reqs(self, reqs: Iterable[Request | ChunkedReq] = ()) -> None:
        """Let requests join, and those that ended or lost their lease leave."""
        joining = {req for req in reqs if isinstance(req, Request)}
        self.running_reqs = {
            req for req in self.running_reqs | joining if not req.finished and req.lease
        }

    def remove_req(self, req: Request) -> None:
        """Drop one request, if it is there."""
        self.running_reqs.discard(req)

    def may_run(self, req: Request) -> bool:
        """Whether a step for ``req`` may be launched now."""
        known = req.token_at(req.computed_len) is not None
        if not known and not self.run_ahead:
            return False
        return req.can_decode or (not self.foresee_length and req.remain_len == 0)

    def schedule_next_batch(self) -> list[Request]:
        """The requests that may run now, in order of arrival."""
        return sorted(filter(self.may_run, self.running_reqs), key=lambda req: req.order)

    def growth(self, req: Request) -> int:
        """Positions for which memory is kept back: at least the next step, if there is one."""
        left = req.max_device_len - max(req.computed_len, req.device_len - 1)
        return min(left, max(1, math.ceil(left * self.new_token_ratio)))

    def pages_ahead(self, req: Request) -> int:
        """Pages that a running request may still claim, as far as admission keeps them back."""
        held = len(req.lease.pages) if req.lease else 0
        return max(0, self.allocator.pages_for(req.computed_len + self.growth(req)) - held)

    @property
    def inflight_tokens(self) -> int:
        """KV slots kept back for the running requests, in whole pages."""
        return sum(map(self.pages_ahead, self.running_reqs)) * self.allocator.page_size
