"""What must be true of a scheduler's memory after every call, at any depth."""

from __future__ import annotations

from collections import Counter

from minisched.core import Lease, Request
from minisched.memory.radix_node import TreeNode
from minisched.scheduler import Scheduler


def nodes_of(scheduler: Scheduler) -> list[TreeNode]:
    """Every node of the radix tree but the root."""
    found: list[TreeNode] = []
    stack = list(scheduler.tree.root_node.children.values()) if scheduler.tree else []
    while stack:
        node = stack.pop()
        found.append(node)
        stack += node.children.values()
    return found


def leases_of(scheduler: Scheduler) -> list[Lease]:
    """Every lease that is open or on its way back."""
    leases = [req.lease for req in scheduler.live.values() if req.lease]
    return [*leases, *scheduler.leases.returning]


def own_pages(lease: Lease) -> list[int]:
    """What only this lease holds."""
    retired = [page for _, pages in lease.retired for page in pages]
    return lease.pages[lease.shared_pages :] + retired


def check_pages(scheduler: Scheduler) -> None:
    """available + evictable + protected + held by running == total; and each page once."""
    tree = scheduler.tree
    cached = [page for node in nodes_of(scheduler) for page in node.edge.page_ids]
    held = [page for lease in leases_of(scheduler) for page in own_pages(lease)]
    pages = scheduler.allocator.free_pages + cached + held
    assert sorted(pages) == list(range(1, scheduler.config.num_pages + 1)), (
        "each page has one place"
    )
    if tree is not None:
        assert tree.evictable_size + tree.protected_size == len(cached)
        locked = [node for node in nodes_of(scheduler) if node.lock_ref]
        assert sum(node.edge.num_pages for node in locked) == tree.protected_size
    for lease in leases_of(scheduler):
        assert set(lease.pages[: lease.shared_pages]) <= set(cached), "what is shared is cached"


def check_rows(scheduler: Scheduler) -> None:
    """free rows + used rows == all."""
    rows = [lease.row for lease in leases_of(scheduler)] + scheduler.table.free_rows
    assert sorted(rows) == list(range(1, scheduler.table.size + 1)), "each row has one place"


def check_locks(scheduler: Scheduler) -> None:
    """Lock counts are those of the paths of the requests that hold memory."""
    locks: Counter[TreeNode] = Counter()
    for lease in leases_of(scheduler):
        node = lease.node
        while isinstance(node, TreeNode) and node.parent is not None:
            locks[node] += 1
            node = node.parent
    for node in nodes_of(scheduler):
        assert node.lock_ref == locks[node], "a lock belongs to nobody, or lacks"


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
    check_pages(scheduler)
    check_rows(scheduler)
    check_locks(scheduler)
    check_queues(scheduler)
