"""The law *waste*: few rows are launched for a request that has left its memory.

The host reads the end of a request after later steps are launched. Their rows for it are wasted.

- At its length a request wastes at most the ``overrun`` of its loop: a length is known in advance.
- After a stop token it wastes at most ``depth - 1`` rows, because one step has returned. It wastes
  none if the host has to know each token before the next step (not ``run_ahead``).
- A failed step or a retraction wastes at most ``depth - 1`` rows, and an abort ``depth``.

Drafts can reach a length earlier than the host knows, so with drafts a length counts as a stop. No
step that is committed later has a row of the lease.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ..core import FinishReason, Lease, Request, ScheduleBatch
from ..engine.engine import Engine
from ..loops.design import LOOPS
from .history import many

FORESEES_LENGTH = ("enable_skip_finishing_decode", "early_exit")
"""Options of ``overlap`` and ``trtllm_overlap``; off, a length is not foreseen."""


def overrun_of(loop: str, options: Mapping[str, Any]) -> int:
    """Return the rows that a loop may launch for a request past its length."""
    return LOOPS[loop].overrun + any(options.get(name) is False for name in FORESEES_LENGTH)


class Waste:
    """Follows the leases of one scheduler; ``found`` are the sentences found so far."""

    def __init__(self, engine: Engine, overrun: int) -> None:
        self.found: list[str] = []
        self.depth, self.overrun = engine.worker.depth, overrun
        self.leases = engine.scheduler.leases
        config = engine.scheduler.config
        self.has_drafts, self.run_ahead = bool(config.num_draft_tokens), config.run_ahead
        self.steps: defaultdict[Lease, list[int]] = defaultdict(list)  # with a row of the lease
        self.reqs: dict[Lease, Request] = {}
        self.closed = set[Lease]()
        close = self.leases.close

        def closed(lease: Lease) -> None:
            """Judge the rows in flight of a lease that is closed."""
            self.judge(lease)
            close(lease)

        self.leases.close = closed  # type: ignore[method-assign]

    def look(self, batch: ScheduleBatch) -> None:
        """Record the rows of a step; none may have a closed lease."""
        for req, lease in zip(batch.reqs, batch.leases, strict=True):
            if lease in self.closed:
                self.found.append(
                    f"step {batch.step} has a row of {lease.rid}, which has left its memory"
                )
            self.steps[lease].append(batch.step)
            self.reqs[lease] = req

    def judge(self, lease: Lease) -> None:
        """Compare the rows in flight of a lease with the most that its end may waste."""
        if lease not in self.reqs or lease in self.closed:
            return  # without a step, or closed twice, which is not this law's affair
        self.closed.add(lease)
        wasted = sum(step > self.leases.returned_step for step in self.steps.pop(lease))
        reason, ahead = self.reqs[lease].finish_reason, self.depth - 1
        ends = FinishReason.STOP, FinishReason.LENGTH
        if reason is FinishReason.LENGTH and not self.has_drafts:
            most = min(self.overrun, ahead)
        elif reason in ends and not self.run_ahead:
            most = 0
        else:
            most = ahead + (reason is FinishReason.ABORT)
        if wasted > most:
            why = f"ends ({reason.value})" if reason else "is retracted"
            self.found.append(
                f"{lease.rid} {why} after step {self.leases.returned_step} and wastes "
                f"{many(wasted, 'row')} in flight, but this loop may waste {most} then"
            )
