"""What an engine's own books say at every moment of a run: beside the trace, not read from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from minisched.devices.sim import SimDevice
from minisched.engine.engine import Engine
from minisched.memory.radix_node import TreeNode
from minisched.scheduler.state import SchedulerState

Pages = dict[int, tuple[str, str]]  # page -> kind, whose


@dataclass(frozen=True)
class Truth:
    """One moment, in the engine's own terms."""

    waiting: set[str]  # ``waiting_queue``
    live: set[str]  # received, and not ended
    running: list[str]  # ``running_batch``
    chunked: set[str]
    holding: set[str]  # live, with a lease
    zombies: list[tuple[str, int]]  # (request, row) of leases that are closed and not released
    rows: dict[int, tuple[str, str]]
    pages: Pages
    locks: dict[int, int]  # node -> lock_ref
    used: int  # tokens
    cached: int


@dataclass
class Books:
    """The truth after each moment; the last of one time counts."""

    at: dict[int, Truth] = field(default_factory=dict)
    scheduler: SchedulerState | None = None
    clock: Callable[[], int] | None = None

    def follow(self, device: SimDevice, scheduler: SchedulerState) -> None:
        """Look whenever time is about to pass: nothing is missed, and nothing half done is seen."""
        self.scheduler, self.clock = scheduler, device.now
        idle_until, run_next = device.idle_until, device._run_next

        def first(call: Callable[..., None]) -> Callable[..., None]:
            def both(*arguments: int) -> None:
                self.at[device.time] = look(scheduler)
                call(*arguments)

            return both

        device.idle_until = first(idle_until)  # type: ignore[method-assign]
        device._run_next = first(run_next)  # type: ignore[method-assign]

    def up_to(self, end: int) -> dict[int, Truth]:
        """All of it up to the run's last slice, and what is there then."""
        assert self.scheduler is not None and self.clock is not None
        if self.clock() <= end:
            self.at[self.clock()] = look(self.scheduler)  # a pair's other side may go on
        found = {time: truth for time, truth in self.at.items() if time <= end}
        return found | {end: found[max(found)]}

    def patch(self, device: SimDevice) -> Callable[[Engine], None]:
        """For ``laws.play``."""
        return lambda engine: self.follow(device, engine.scheduler)


def look(scheduler: SchedulerState) -> Truth:
    """Everything that the panels show, and the counters."""
    leases, tree = scheduler.leases, scheduler.tree
    nodes = nodes_of(tree.root_node) if tree else []
    owners = {page: ("admitted", lease.rid) for page, lease in scheduler.allocator._owner.items()
              if not lease.is_released}  # fmt: skip
    zombies = [lease for lease in leases.returning if not lease.num_transfers]
    for page, lease in scheduler.allocator._owner.items():
        if lease in zombies:
            owners[page] = ("wasted", lease.rid)
    cached = {
        page: ("protected" if node.lock_ref else "evictable", "")
        for node in nodes for page in node.edge.page_ids
    }  # fmt: skip
    table = scheduler.table
    rows = {row: table._owner[row] for row in set(range(1, table.size + 1)) - {*table.free_rows}}
    chunked = scheduler.prefill.chunked_req
    live = scheduler.live.values()
    return Truth(
        {req.rid for req in scheduler.waiting_queue},
        set(scheduler.live),
        [req.rid for req in scheduler.running_batch],
        {chunked.req.rid} if chunked else set(),
        {req.rid for req in live if req.lease is not None},
        sorted((lease.rid, lease.row) for lease in zombies),
        {row: ("wasted" if lease in zombies else "admitted", lease.rid)
         for row, lease in rows.items()},
        owners | cached,
        {node.id: node.lock_ref for node in nodes},
        scheduler.num_used_tokens,
        (tree.evictable_size if tree else 0) * scheduler.config.page_size,
    )  # fmt: skip


def nodes_of(node: TreeNode) -> list[TreeNode]:
    """All nodes below one."""
    children = node.children.values()
    return [each for child in children for each in (child, *nodes_of(child))]
