"""The set of requests that produce tokens."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core import ChunkedReq, Request


@dataclass
class DecodeManager:
    """One set of running requests (mini-sglang ``scheduler/decode.py``), in order of arrival.

    A request leaves the set only when it finishes or loses its lease. Whether it may run *now* is
    computed at each step and never stored: a set that drops a request on an optimistic length
    can forget it for ever.

    ``run_ahead``: a row may be launched before the host knows its input token.
    ``foresee_length``: a request is not launched past ``max_new_tokens``. Designs that only look
    at ``finished`` (SGLang's overlap loop) launch such a row once and waste it.
    """

    run_ahead: bool = False
    foresee_length: bool = True
    running_reqs: list[Request] = field(default_factory=list)

    def add_reqs(self, reqs: Iterable[Request | ChunkedReq]) -> None:
        """Let those join whose prompt is done; a chunked request is not one of them."""
        for req in reqs:
            if isinstance(req, Request) and req not in self.running_reqs:
                insort(self.running_reqs, req, key=lambda running: running.order)

    def remove_req(self, req: Request) -> None:
        """Drop one request, if it is there."""
        if req in self.running_reqs:
            self.running_reqs.remove(req)

    def may_run(self, req: Request) -> bool:
        """Whether a step for ``req`` may be launched now."""
        if not self.run_ahead and req.known_len <= req.computed_len:
            return False
        return req.device_len < req.max_device_len + (not self.foresee_length)

    def schedule_next_batch(self) -> list[Request]:
        """The requests that may run now, in order of arrival.

        ``may_run``, written out: everybody who runs passes here at every step.
        """
        late = not self.foresee_length
        return [
            req
            for req in self.running_reqs
            if req.device_len < req.max_device_len + late
            and (self.run_ahead or req.computed_len < req.known_len)
        ]
