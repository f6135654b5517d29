"""Faults of memory: a request for which there never is enough."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from ...core import Request, SamplingParams
from ...devices.base import Device
from ...engine.engine import Engine
from ..workload import Workload
from .fault import Fault, wrap

TOO_LARGE = "too large"


class NoneAtStart(Fault):
    """The device has no memory for what a run needs from its beginning to its end."""

    name: ClassVar[str] = "no memory at start"
    keeps_from_starting: ClassVar[bool] = True

    def open(self, device: Device) -> None:
        """Wrap what takes it: KV, page table, relay, outputs."""
        wrap(device, "memory", self.around)

    def around(self, memory: Any, name: str, size: int) -> Any:
        """Find none, from the ``at``-th time on."""
        if self.is_due():
            self.hit()
        if self.is_hit:
            raise MemoryError(f"tried to allocate {8 * size} bytes")
        return memory(name, size)


class NeverFits(Fault):
    """A request comes that needs more than the whole pool, or the context: it is refused."""

    name: ClassVar[str] = "never fits"

    def prepare(self, workload: Workload) -> None:
        """One more request."""
        self.add(workload, max_new_tokens=workload.config.num_slots)

    def add(self, workload: Workload, max_new_tokens: int) -> None:
        """It comes in the ``at``-th turn."""
        params = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
        workload.requests = [*workload.requests, Request(TOO_LARGE, [1, 2], params)]
        workload.arrivals = [*workload.arrivals, self.at]
        self.hit(TOO_LARGE)


class RunsOut(NeverFits):
    """A request that nobody refused runs out of pages on the way, when all others have made room.

    The scheduler's own refusal is switched off for it, and the context made longer than the pool:
    an engine that does not bound outputs has such requests every day.
    """

    name: ClassVar[str] = "runs out of pages"

    @classmethod
    def fits(cls, loop: str, device: str) -> bool:
        """``pd`` reserves all the pages that a request may ever want, before it begins."""
        return loop != "pd"

    def prepare(self, workload: Workload) -> None:
        """One more request, as long as the context, and so longer than the pool."""
        config = workload.config
        longest = max(config.context_len, config.num_slots + config.page_size)
        workload.config = replace(config, context_len=longest)
        self.add(workload, max_new_tokens=longest - 2)
        self.is_hit = False

    def put_in(self, engine: Engine) -> None:
        """Refuse it no more."""
        refusal = engine.scheduler.config.refusal
        object.__setattr__(
            engine.scheduler.config, "refusal",
            lambda req: None if req.rid == TOO_LARGE else refusal(req),
        )  # fmt: skip

    def each_turn(self, engine: Engine) -> None:
        """It is hit when the request has memory and can't go on."""
        req = engine.scheduler.live.get(TOO_LARGE)
        self.is_hit |= req is not None and req.lease is not None
