"""Edits that several published bugs need: this code's second lines of defence, taken away."""

from __future__ import annotations

from .patch import Edit

ENDED_KEEPS_ITS_LEASE = Edit(
    "scheduler.scheduler:Scheduler._finish",
    healthy="    lease, req.lease = req.lease, None\n",
    bug="    lease = req.lease\n",
)
"""A request that has ended still names its memory, as SGLang's keeps its ``req_pool_idx``."""

RELEASED_KEEPS_ITS_PAGES = Edit(
    "memory.pool:LeasePool.release",
    healthy="    lease.pages, lease.shared_pages, lease.node = [], 0, None\n",
    bug="",
)
"""What is released still lists its pages, as a row of ``req_to_token`` does."""

STALE_BY_COUNT = Edit(
    "scheduler.scheduler:Scheduler.process",
    healthy="""\
        if req.lease is not lease:  # ended or retracted while the step was running
            outputs += self.odd_rows.late(batch, req, lease, token if deliver else None, error)
""",
    bug="""\
        if req.finished or req in drained or req.num_stale_output_tokens:
            outputs += self.odd_rows.late(batch, req, lease, None)  # thrown away
""",
)
"""A row is stale if the request's count says so, and not by the lease that it ran under.

With an exact count this is right as well, whatever the depth.
"""
