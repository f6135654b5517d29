"""The scheduler alone, without any device: its books balance after every call, at any depth."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from minisched.core import Batch, ForwardMode, NoBatch, Result
from minisched.scheduler import Scheduler, SchedulerConfig

from .workloads import Workload, workloads


def books_balance(scheduler: Scheduler) -> None:
    """Every page and row is free, leased, or on its way back: once."""
    leases = [req.lease for req in scheduler.live.values() if req.lease]
    held = [page for lease in [*leases, *scheduler.leases.returning] for page in lease.pages]
    pages = held + scheduler.allocator.free_pages
    assert sorted(pages) == list(range(1, scheduler.config.num_pages + 1))
    rows = [lease.row for lease in [*leases, *scheduler.leases.returning]]
    assert sorted(rows + scheduler.table.free_rows) == list(range(1, scheduler.table.size + 1))
    for req in scheduler.decode.running_reqs:
        assert not req.finished and req.lease is not None
    waiting = {id(req) for req in scheduler.prefill.pending_list}
    assert not waiting & {id(req) for req in scheduler.decode.running_reqs}


def batch_is_right(batch: Batch, scheduler: Scheduler) -> None:
    """What every committed batch promises."""
    rows = [row.lease.row for row in batch.rows]
    assert len(set(rows)) == len(rows), "no request table row twice in a batch"
    orders = [row.req.order for row in batch.rows]
    if batch.mode is ForwardMode.DECODE:
        assert orders == sorted(orders), "rows come in the order of arrival"
        assert all(row.extend_len == 1 and row.deliver for row in batch.rows)
    else:
        assert batch.num_tokens <= scheduler.config.chunk_size
        assert sum(not row.deliver for row in batch.rows) <= 1, "one chunked request at a time"
    for row in batch.rows:
        held = len(row.lease.pages) * scheduler.config.page_size
        assert row.start + row.extend_len <= held, "every position has a KV slot"


@given(workload=workloads(), depth=st.integers(1, 4), data=st.data())
@settings(max_examples=300, deadline=None)
def test_the_books_balance_after_every_call(
    workload: Workload, depth: int, data: st.DataObject
) -> None:
    config = SchedulerConfig(
        **{**vars(workload.config), "run_ahead": depth > 1, "foresee_length": depth != 2}
    )
    scheduler = Scheduler(config)
    in_flight: deque[Batch] = deque()
    todo = list(workload.requests)
    for turn in range(600):
        scheduler.receive(todo[:1])
        del todo[:1]
        if turn in workload.aborts:
            scheduler.abort(workload.aborts[turn])
        books_balance(scheduler)
        batch = scheduler.next_batch()
        if batch:
            batch_is_right(batch, scheduler)
            in_flight.append(batch)
        books_balance(scheduler)
        if in_flight and (not batch or len(in_flight) >= depth):
            done = in_flight.popleft()
            tokens = data.draw(st.lists(st.integers(0, 8), min_size=len(done.rows), max_size=9))
            scheduler.process(done, Result(tokens + [0] * len(done.rows)))
            books_balance(scheduler)
        if not todo and not scheduler.live and not in_flight:
            break
    else:
        raise AssertionError("a livelock")
    assert scheduler.next_batch() is NoBatch.IDLE
    assert len(scheduler.allocator.free_pages) == config.num_pages
