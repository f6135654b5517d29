"""What must be true of a scheduler after every call: its memory, and where its requests are."""

from __future__ import annotations

from collections import Counter

from minisched.checks.leaks.books import check_step, leases_of, nodes_of
from minisched.core import Request
from minisched.scheduler import Scheduler

__all__ = ["check_books", "check_queues", "leases_of", "nodes_of"]


def check_queues(scheduler: Scheduler) -> None:
    """A live request is in one place: it waits, is being computed in chunks, or decodes."""
    chunked = scheduler.prefill.chunked_req
    places: list[Request] = [*scheduler.waiting_queue, *scheduler.running_batch]
    places += [chunked.req] if chunked else []
    assert Counter(places) == Counter(scheduler.live.values())
    assert all(req.lease is None for req in scheduler.waiting_queue)
    assert all(req.lease is not None for req in scheduler.running_batch)
    orders = [req.order for req in scheduler.running_batch]
    assert orders == sorted(orders), "who runs is kept in the order of arrival"


def check_books(scheduler: Scheduler) -> None:
    """All of it."""
    check_step(scheduler)
    check_queues(scheduler)
