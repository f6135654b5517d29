"""Looks at a live scheduler's memory: all of it is somewhere, and in one place.

``find_unbalanced`` may be asked between any two turns of a loop, ``find_held`` when nothing runs.
They see what is wrong; who took it when, and who should have given it back, tells the ledger of the
scheduler's own marks (``leaks.py``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ..core import Lease
from ..memory import BlockPool, MemoryLeak
from ..memory.block_pool import Block
from ..memory.radix_cache import TreeNode
from ..scheduler import Scheduler
from .history import counted, plural


def find_unbalanced(scheduler: Scheduler) -> Iterator[str]:
    """Free + cached + held == total, each page and row once; locks are those of who holds memory.

    A sentence for what of it does not hold, which says whose it was.
    """
    yield from _pages(scheduler)
    yield from _rows(scheduler)
    yield from _locks(scheduler)


def find_held(scheduler: Scheduler) -> Iterator[str]:
    """The same, and what is held although every request has ended."""
    yield from find_unbalanced(scheduler)
    try:
        scheduler.leases.self_check()
    except MemoryLeak as error:
        yield str(error)


def _pages(scheduler: Scheduler) -> Iterator[str]:
    """Each page is free, or in the prefix cache, or one lease's own."""
    cache, allocator, open_leases = scheduler.page_cache, scheduler.allocator, leases_of(scheduler)
    cached = [page for node in nodes_of(scheduler) for page in node.page_ids]
    cached += blocks_of(scheduler)
    owned = [
        (page, lease)
        for lease in open_leases + outlived_by_pages(scheduler)
        for page in own_pages(lease)
    ]
    places = Counter(allocator.free_pages)
    places.update(cached)
    places.update(page for page, _ in owned)
    if lost := [page for page in range(1, scheduler.config.num_pages + 1) if not places[page]]:
        lease = allocator.owner.get(lost[0])
        mine = [page for page in lost if allocator.owner.get(page) is lease]
        yield f"{plural('page', mine)} {fate_of(lease)}: neither free, nor cached, nor held"
    for page in (page for page, count in places.items() if count > 1):
        free = allocator.free_pages.count(page)
        lease = dict(owned).get(page) or (allocator.owner.get(page) if free > 1 else None)
        whose = f"{lease.rid}'s" if lease else "the prefix cache's"
        where = f"{free} times among the free ones" if free > 1 else "in two places"
        yield f"page {page} is {where}; it is or was {whose}"
    if cache is not None and cache.total_size != len(cached):
        yield f"the cache counts {counted(cache.total_size, 'page')} and has {len(cached)}"
    for lease in open_leases:
        if gone := set(lease.pages[: lease.shared_pages]).difference(cached):
            what = plural("page", gone)
            yield f"{lease.rid} reads {what} of a prefix that is not cached any more"


def _rows(scheduler: Scheduler) -> Iterator[str]:
    """Each row is free or one lease's."""
    table = scheduler.table
    places = Counter(table.free_rows)
    places.update(lease.row for lease in leases_of(scheduler))
    for row in range(1, table.size + 1):
        if places[row] != 1:
            owner = table.req_to_token.get(row)
            if places[row]:
                yield f"row {row}, {owner.rid if owner else 'nobody'}'s, is held twice"
            else:
                yield f"row {row} {fate_of(owner)}: nobody holds it"


def _locks(scheduler: Scheduler) -> Iterator[str]:
    """Lock counts are those of the paths of the leases; protected is what is locked.

    In a block pool they are those of the blocks that leases begin with: each is used as often,
    the unused ones can be evicted, and each is findable by its hash, or was taken back.
    """
    holders: defaultdict[TreeNode | int, list[str]] = defaultdict(list)
    nodes, blocks, pool = nodes_of(scheduler), blocks_of(scheduler), scheduler.page_cache
    for lease in leases_of(scheduler):
        for page in lease.pages[: lease.shared_pages] if blocks else ():
            holders[page].append(lease.rid)
        node = lease.node
        while isinstance(node, TreeNode) and node.parent is not None:
            holders[node].append(lease.rid)
            node = node.parent
    for page, block in blocks.items():
        if block.ref_cnt != len(holders[page]):
            who = ", ".join(holders[page]) or "nobody"
            yield f"page {page} has a ref_cnt of {block.ref_cnt}, but it is {who} who may use it"
    if isinstance(pool, BlockPool):
        if unused := {page for page in blocks if not holders[page]} ^ {*pool.free_block_queue}:
            yield f"{plural('page', unused)} is in the free queue and used, or neither"
        found = [page for same in pool.cached_block_hash_to_block.values() for page in same]
        hashed = [page for page, block in blocks.items() if block.block_hash is not None]
        copies = {*hashed} - {*found} if pool.is_nano else set()  # older ones are found no more
        if sorted([*found, *copies]) != sorted(hashed):
            yield "the blocks that are found by a hash are not those that have one"
    for node in nodes:
        if node.lock_ref != len(holders[node]):
            who = ", ".join(holders[node]) or "nobody"
            yield (
                f"node {node.id} ({plural('page', node.page_ids)}) is locked "
                f"{counted(node.lock_ref, 'time')}, but it is {who} who may hold it"
            )
    locked = sum(node.num_pages for node in nodes if node.lock_ref)
    if scheduler.tree is not None and locked != scheduler.tree.protected_size:
        size = scheduler.tree.protected_size
        yield f"locked: {counted(locked, 'page')}; the cache counts {size}"


# -- What there is to look at ----------------------------------------------------------------------


def blocks_of(scheduler: Scheduler) -> dict[int, Block]:
    """Every block of the block pool, by page; nothing where the cache is a tree."""
    pool = scheduler.page_cache
    return pool.blocks if isinstance(pool, BlockPool) else {}


def nodes_of(scheduler: Scheduler) -> list[TreeNode]:
    """Every node of the radix tree but the root."""
    found: list[TreeNode] = []
    stack = [*scheduler.tree.root_node.children.values()] if scheduler.tree else []
    while stack:
        found.append(stack.pop())
        stack += found[-1].children.values()
    return found


def leases_of(scheduler: Scheduler) -> list[Lease]:
    """Every lease that is open or on its way back."""
    leases = [req.lease for req in scheduler.live.values() if req.lease]
    return [*leases, *scheduler.leases.returning]


def outlived_by_pages(scheduler: Scheduler) -> list[Lease]:
    """Released leases with duplicates that a step in flight names (rule ``at_once``)."""
    leases = scheduler.leases
    return [it for it in leases.retiring if it.is_released and not leases.is_settled(it)]


def own_pages(lease: Lease) -> list[int]:
    """What only this lease holds."""
    retired = [page for _, pages in lease.retired for page in pages]
    return lease.pages[lease.shared_pages :] + retired


def fate_of(lease: Lease | None) -> str:
    """What became of the last owner of something that is in no place."""
    if lease is None:
        return "was handed to the prefix cache or never to anybody"
    state = "is released" if lease.is_released else "was never released"
    return f"was {lease.rid}'s, whose lease {state}"
