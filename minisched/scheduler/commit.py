"""Turning a plan into a batch: from here on its rows are in flight."""

from __future__ import annotations

from ..core import ChunkedReq, Request, Row, ScheduleBatch
from ..memory import LeasePool
from ..policy import Plan
from .state import SchedulerState


def commit(state: SchedulerState, plan: Plan) -> ScheduleBatch:
    """Advance lengths, reserve pages, and freeze what is true now, row by row."""
    state.step += 1
    state.batches_in_flight += 1
    rows = [make_row(state.leases, req, length) for req, length in plan.prompts]
    if plan.prompts:
        state.decode.add_reqs(row.req if row.deliver else ChunkedReq(row.req) for row in rows)
    else:
        state.new_token_ratio.on_decode()
    rows += [make_row(state.leases, req, 1) for req, _ in plan.decodes]
    batch = ScheduleBatch(state.step, plan.mode, tuple(rows), len(plan.prompts))
    state.cur_batch = batch
    state.new_batch = batch if plan.prompts else state.new_batch
    return batch


def make_row(leases: LeasePool, req: Request, extend_len: int) -> Row:
    """Advance one request by ``extend_len`` positions."""
    lease = req.lease
    assert lease is not None
    start = req.computed_len
    end = start + extend_len
    pages_at, new_pages = leases.extend(lease, end)
    lease.launched += 1
    ids = (req.token_at(start),) if extend_len == 1 else req.tokens(start, end)
    is_last = end == req.device_len
    req.computed_len = end
    if is_last:
        req.device_len += 1  # the token that this step samples will exist
    return Row(req, lease, start, ids, new_pages, pages_at, is_last)
