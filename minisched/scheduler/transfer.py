"""PD separation's prefill scheduler: pages stay held until the KV in them has been transferred."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ..core import FinishReason, Lease, Output, Request
from ..trace import Recorder
from .config import SchedulerConfig
from .scheduler import Scheduler


class Prefilled(NamedTuple):
    """A request that the prefill side is done with. ``token`` None: it failed, or was given up."""

    req: Request
    lease: Lease | None  # held, if there is a token
    token: int | None
    error: str


class PrefillScheduler(Scheduler):
    """SGLang ``disaggregation/prefill.py``: prompts in, first tokens and KV out; nobody decodes.

    Its requests ask for one token (as the original's do), so each ends with the first. Its lease
    is closed then, and held until the KV has been copied. With ``prealloc_first`` a prompt waits
    in ``bootstrap_queue`` until the decode side has reserved pages for it.
    """

    prealloc_first = True

    def __init__(self, config: SchedulerConfig, recorder: Recorder | None = None) -> None:
        super().__init__(config, recorder)
        self.bootstrap_queue: dict[str, Request] = {}
        self.done: list[Prefilled] = []

    @property
    def awaits_others(self) -> bool:
        """A reservation, or the end of a transfer, may help those who wait."""
        return bool(self.bootstrap_queue or self.leases.returning or self.leases.retiring)

    def receive(self, reqs: Iterable[Request]) -> list[Output]:
        """Queue new requests; with ``prealloc_first`` they can't run yet."""
        reqs = list(reqs)
        outputs = super().receive(reqs)
        for req in reqs if self.prealloc_first else ():
            if req in self.waiting_queue:
                self.waiting_queue.remove(req)
                self.bootstrap_queue[req.rid] = req
        return outputs

    def bootstrapped(self, rid: str) -> None:
        """The decode side has room for it: it may be computed (SGLang ``pop_bootstrapped``)."""
        req = self.bootstrap_queue.pop(rid, None)
        if req is not None:
            self.waiting_queue.add(req)

    def take_done(self) -> list[Prefilled]:
        """Those that have ended since the last call."""
        done, self.done = self.done, []
        return done

    def _refuse(self, req: Request, problem: str) -> Output:
        output = super()._refuse(req, problem)
        self.done.append(Prefilled(req, None, None, problem))
        return output

    def _finish(
        self, req: Request, reason: FinishReason, token: int | None = None, error: str = ""
    ) -> Output:
        self.bootstrap_queue.pop(req.rid, None)
        lease = req.lease
        if lease is not None and token is not None:
            self.leases.hold(lease)
        output = super()._finish(req, reason, token, error)
        self.done.append(Prefilled(req, lease, token, error or reason.value))
        return output
