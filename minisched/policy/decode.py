"""The set of requests that produce tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core import ChunkedReq, Request


@dataclass
class DecodeManager:
    """One set of running requests (mini-sglang ``scheduler/decode.py``).

    They are in the order in which their prompts were done, as in SGLang's ``running_batch``; a
    mixed step puts its prompts ahead of those who decoded beside them.

    A request leaves the set only when it finishes or loses its lease. Whether it may run *now* is
    computed at each step and never stored: a set that drops a request on an optimistic length
    can forget it for ever.

    mini-sglang has a ``set``, for O(1). Here it is a list, since the order of a batch's rows is a
    part of the schedule, and ranks have to agree on it (museum: ``ranks_disagree``). To leave and
    join again takes 1.1 us with 256 running and 15 with 4,096, once in a request's life.

    ``run_ahead``: a row may be launched before the host knows its input token.
    ``overrun``: how many steps a request may be launched past ``max_new_tokens``. A design that
    foresees a length stop has 0; one that only looks at ``finished`` (SGLang's overlap loop up to
    0.5.21) has 1, launches such a row once and wastes it; one that runs N steps at a time has
    N - 1.
    """

    run_ahead: bool = False
    overrun: int = 0
    running_reqs: list[Request] = field(default_factory=list)

    def add_reqs(self, reqs: Iterable[Request | ChunkedReq], mixed: bool = False) -> None:
        """Let those join whose prompt is done; a chunked request is not one of them.

        ``mixed``: in the step that is launched now, those who run decode behind them.
        """
        new = [req for req in reqs if isinstance(req, Request) and req not in self.running_reqs]
        self.running_reqs = new + self.running_reqs if mixed else self.running_reqs + new

    def remove_req(self, req: Request) -> None:
        """Drop one request, if it is there."""
        if req in self.running_reqs:
            self.running_reqs.remove(req)

    def may_run(self, req: Request) -> bool:
        """Whether a step for ``req`` may be launched now."""
        if not self.run_ahead and req.known_len <= req.computed_len:
            return False
        return req.device_len < req.max_device_len + self.overrun

    @property
    def is_anyone_ending(self) -> bool:
        """Whether somebody runs for whom every step is launched: its memory will come back."""
        return any(req.device_len >= req.max_device_len + self.overrun for req in self.running_reqs)

    def schedule_next_batch(self) -> list[Request]:
        """The requests that may run now, in the order of the set.

        ``may_run``, written out: everybody who runs passes here at every step.
        """
        overrun = self.overrun
        return [
            req
            for req in self.running_reqs
            if req.device_len < req.max_device_len + overrun
            and (self.run_ahead or req.computed_len < req.known_len)
        ]
