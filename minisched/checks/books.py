"""Looks at a scheduler's memory while a run goes on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from ..core import Lease
from ..engine.engine import Engine
from ..memory import BlockPool, MemoryLeak
from ..memory.block_pool import Block
from ..memory.radix_cache import TreeNode
from ..scheduler import Scheduler
from ..trace.cells import is_in
from .history import MarkMoment, moments, plural
from .laws import Broken
from .leaks import Leak, Ledger, report

# -- What must be true of a live scheduler's memory after every call, at any depth -----------------
#
# ``check_step`` may be called between any two turns of a loop, ``check_idle`` when nothing runs.


def check_step(scheduler: Scheduler) -> None:
    """Free + cached + held == total, each page and row once; locks are those of who holds memory.

    Raises:
        Broken: one of it does not hold; the message says whose it was.
    """
    check_pages(scheduler)
    check_rows(scheduler)
    check_locks(scheduler)


def check_idle(scheduler: Scheduler, before: Iterable[str] = ()) -> None:
    """When every request has ended: nothing is held, and no thread is left.

    ``before`` are the names of the threads that were alive before the run (``threads()``); only
    call it with them when the device has been closed.

    Raises:
        Broken: something is held, or a thread is still alive.
    """
    check_step(scheduler)
    try:
        scheduler.leases.self_check()
    except MemoryLeak as error:
        raise Broken(f"leak: {error}") from None
    known = list(before)
    left = [name for name in threads() if name not in known] if known else []
    if left:
        raise Broken(
            f"leak: the {' '.join(['thread' + 's' * (len(left) > 1), *left])} is still alive"
        )


def threads() -> list[str]:
    """The names of all threads that are alive."""
    return [thread.name for thread in threading.enumerate()]


def check_pages(scheduler: Scheduler) -> None:
    """Each page is free, or in the prefix cache, or one lease's own."""
    cache, allocator = scheduler.page_cache, scheduler.allocator
    cached = [page for node in nodes_of(scheduler) for page in node.page_ids]
    cached += blocks_of(scheduler)
    leases = leases_of(scheduler) + outlived_by_pages(scheduler)
    held = {page: lease for lease in leases for page in own_pages(lease)}
    places = Counter(allocator.free_pages) + Counter(cached)
    places.update(page for lease in leases for page in own_pages(lease))
    pages = range(1, scheduler.config.num_pages + 1)
    if lost := [page for page in pages if not places[page]]:
        lease = allocator.owner.get(lost[0])
        mine = [page for page in lost if allocator.owner.get(page) is lease]
        what, story = plural("page", mine), story_of(scheduler, "page", mine)
        raise Broken(f"leak: {what} {fate_of(lease)}: neither free, nor cached, nor held{story}")
    for page in (page for page, count in places.items() if count > 1):
        free, whose = allocator.free_pages.count(page), "the prefix cache's"
        if lease := held.get(page) or (allocator.owner.get(page) if free > 1 else None):
            whose = f"{lease.rid}'s"
        story = story_of(scheduler, "page", [page])
        where = f"{free} times among the free ones" if free > 1 else "in two places"
        raise Broken(f"leak: page {page} is {where}; it is or was {whose}{story}")
    if cache is not None and cache.total_size != len(cached):
        raise Broken(f"leak: the cache counts {cache.total_size} pages and has {len(cached)}")
    for lease in leases_of(scheduler):
        if gone := set(lease.pages[: lease.shared_pages]) - set(cached):
            what = plural("page", gone)
            raise Broken(f"leak: {lease.rid} reads {what} of a prefix that is not cached any more")


def check_rows(scheduler: Scheduler) -> None:
    """Each row is free or one lease's."""
    table = scheduler.table
    places = Counter(table.free_rows)
    places.update(lease.row for lease in leases_of(scheduler))
    for row in range(1, table.size + 1):
        if not places[row]:
            fate, story = fate_of(table.req_to_token.get(row)), story_of(scheduler, "row", [row])
            raise Broken(f"leak: row {row} {fate}: nobody holds it{story}")
        if places[row] > 1:
            owner = table.req_to_token.get(row)
            rid, story = owner.rid if owner else "nobody", story_of(scheduler, "row", [row])
            raise Broken(f"leak: row {row}, {rid}'s, is held twice{story}")


def check_locks(scheduler: Scheduler) -> None:
    """Lock counts are those of the paths of the leases; protected is what is locked.

    In a block pool they are those of the blocks that leases begin with, and each is findable by
    its hash, or was taken back.
    """
    check_blocks(scheduler)
    locks: Counter[TreeNode] = Counter()
    holders: dict[TreeNode, list[str]] = {}
    for lease in leases_of(scheduler):
        node = lease.node
        while isinstance(node, TreeNode) and node.parent is not None:
            locks[node] += 1
            holders.setdefault(node, []).append(lease.rid)
            node = node.parent
    for node in nodes_of(scheduler):
        if node.lock_ref != locks[node]:
            who, story = (
                ", ".join(holders.get(node, [])) or "nobody",
                story_of_lock(scheduler, node),
            )
            raise Broken(
                f"leak: node {node.id} ({plural('page', node.page_ids)}) is locked "
                f"{node.lock_ref} times, but it is {who} who may hold it{story}"
            )
    locked = sum(node.num_pages for node in nodes_of(scheduler) if node.lock_ref)
    if scheduler.tree is not None and locked != scheduler.tree.protected_size:
        raise Broken(
            f"leak: {locked} pages are locked, {scheduler.tree.protected_size} are counted"
        )


def check_blocks(scheduler: Scheduler) -> None:
    """Each block is used as often as leases begin with it; the unused ones can be evicted."""
    blocks, uses = blocks_of(scheduler), Counter[int]()
    holders: dict[int, list[str]] = {}
    for lease in leases_of(scheduler) if blocks else ():
        uses.update(lease.pages[: lease.shared_pages])
        for page in lease.pages[: lease.shared_pages]:
            holders.setdefault(page, []).append(lease.rid)
    for page, block in blocks.items():
        if block.ref_cnt != uses[page]:
            who = ", ".join(holders.get(page, [])) or "nobody"
            story = story_of(scheduler, "lock", [page])
            raise Broken(
                f"leak: page {page} has a ref_cnt of {block.ref_cnt}, but it is {who} who may use "
                f"it{story}"
            )
    pool = scheduler.page_cache
    if isinstance(pool, BlockPool):
        if unused := {page for page in blocks if not uses[page]} ^ {*pool.free_block_queue}:
            what = plural("page", unused)
            raise Broken(f"leak: {what} is in the free queue and used, or neither")
        found = [page for same in pool.cached_block_hash_to_block.values() for page in same]
        hashed = [page for page, block in blocks.items() if block.block_hash is not None]
        copies = {*hashed} - {*found} if pool.is_nano else set()  # older ones are found no more
        if sorted([*found, *copies]) != sorted(hashed):
            raise Broken("leak: the blocks that are found by a hash are not those that have one")


def blocks_of(scheduler: Scheduler) -> dict[int, Block]:
    """Every block of the block pool, by page; nothing where the cache is a tree."""
    pool = scheduler.page_cache
    return pool.blocks if isinstance(pool, BlockPool) else {}


def fate_of(lease: Lease | None) -> str:
    """What became of the last owner of something that is in no place."""
    if lease is None:
        return "was handed to the prefix cache or never to anybody"
    state = "is released" if lease.is_released else "was never released"
    return f"was {lease.rid}'s, whose lease {state}"


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


def outlived_by_pages(scheduler: Scheduler) -> list[Lease]:
    """Released leases with duplicates that a step in flight names (rule ``at_once``)."""
    leases = scheduler.leases
    return [
        lease for lease in leases.retiring if lease.is_released and not leases.is_settled(lease)
    ]


def own_pages(lease: Lease) -> list[int]:
    """What only this lease holds."""
    retired = [page for _, pages in lease.retired for page in pages]
    return lease.pages[lease.shared_pages :] + retired


# -- What a live scheduler's own marks tell of a page, row or lock that is not where it should be
#
# ``books.py`` sees what is wrong after a turn; who took it, and who should have given it back, the
# ledger has heard.


def story_of(scheduler: Scheduler, resource: str, cells: Iterable[int]) -> str:
    """The story of the first leak of one of these, behind a colon; empty where there is none."""
    wanted = set(cells)
    for leak in leaks_so_far(scheduler):
        at = " ".join(word for word in leak.what.split() if word[0].isdecimal())
        if leak.resource == resource and any(is_in(cell, at) for cell in wanted):
            return f": {leak}"
    return ""


def story_of_lock(scheduler: Scheduler, node: TreeNode) -> str:
    """Who locked a node, or one below it, and has lost its row since; or who unlocked it last."""
    below, stack = {node.id}, [node]
    while stack:
        stack += (children := list(stack.pop().children.values()))
        below |= {child.id for child in children}
    for what, cells in (("", {node.id}), (" below it", below)):
        if told := story_of(scheduler, "lock", cells):
            return what + told
    last = ""
    ledger = ledger_of(scheduler)
    for at, delta, lease, now in ledger.lock_log if ledger else ():
        if at in below:
            verb = "locked" if delta > 0 else "unlocked"
            last = f": {lease.rid} {verb} node {at} {now}, and nobody has touched that since"
    return last


def leaks_so_far(scheduler: Scheduler) -> list[Leak]:
    """What the marks say up to now, with all that a released lease still has."""
    if (ledger := ledger_of(scheduler)) is None:
        return []
    for lease in ledger.ending:
        if lease.released is not None:
            report(ledger, lease, f"and its row was freed {lease.released}, but this was not")
        elif not ledger.is_named(lease):
            report(ledger, lease, "and its lease was never released")
    ledger.pages.find_lost(MarkMoment(0))
    return ledger.leaks


def ledger_of(scheduler: Scheduler) -> Ledger | None:
    """The ledger of all marks so far; None where none are kept."""
    recorder = scheduler.recorder
    if not recorder.is_on:
        return None
    trace, ledger = recorder.trace("", "", "", "virtual"), Ledger()
    for mark, now in moments(trace, getattr(recorder, "side", "")):
        ledger.hear(mark, now)
    return ledger


class Books:
    """Looks at a scheduler's memory after every turn, and keeps what was wrong first."""

    def __init__(self) -> None:
        self.error: Broken | None = None

    def look(self, engine: Engine) -> None:
        """After a turn."""
        if self.error is None:
            try:
                check_step(engine.scheduler)
            except Broken as error:
                self.error = error

    def check(self) -> None:
        """When the run is over.

        Raises:
            Broken: something was wrong after one of the turns.
        """
        if self.error is not None:
            raise self.error
