"""The radix tree at any moment: a stay of a node ends where something about the node changes."""

from __future__ import annotations

from dataclasses import replace

from ...trace import Mark, Trace
from ..views.marks import number, word
from ..views.radix_tree import CHANGES, ROOT, Node, Tree
from .side import shown_side
from .stay import Panel, Stay

WHOSE = ("row alloc", "insert", "row free")  # whoever they name takes or leaves the next locks


def tree(trace: Trace) -> Panel:
    """Every node there ever was, after the one it hangs on; ``protected`` or ``evictable``.

    Of a pair of schedulers it is that of the decode side. ``holders`` are the requests whose lock
    ends at the node; it counts on the way up to the root.

    Raises:
        NothingToShow: a mark names a node that is not there, or says too little.
    """
    trace, history = shown_side(trace), _History()
    for mark in trace.marks:
        if mark.name in WHOSE:
            history.whose = word(mark, "rid")
        elif mark.name in CHANGES:
            history.apply(mark)
    stays = history.all_stays(trace.end + 1)
    return Panel("tree", "radix tree", history.places(), stays)


class _History:
    """The tree as it grows, with the stay of each node that is still going on."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.whose = ""
        self.parents: dict[int, int] = {}  # of every node that ever was; a split may change one
        self.locks: dict[int, dict[str, int]] = {}  # by node: how often each request has it locked
        self.now: dict[int, Stay] = {}
        self.stays: list[Stay] = []

    def apply(self, mark: Mark) -> None:
        """Let happen what a mark says, and begin a new stay of each node it touches."""
        self.tree.apply(mark)
        at = number(mark, "node")
        if mark.name == "radix lock":
            self._hold(at, number(mark, "delta"))
            touched = self.tree.path(at)
        else:
            ids = [at, number(mark, "child")] if mark.name == "radix split" else [at]
            touched = [self.tree.nodes[node_id] for node_id in ids]
        for node in touched:
            self._begin(node, mark.time)
        if mark.name == "radix evict":
            del self.tree.nodes[at], self.now[at]

    def _hold(self, node_id: int, delta: int) -> None:
        """Whose turn it is takes a lock, or gives one back."""
        locks = self.locks.setdefault(node_id, {})
        locks[self.whose] = locks.get(self.whose, 0) + delta
        if not locks[self.whose]:
            del locks[self.whose]

    def _begin(self, node: Node, time: int) -> None:
        if (before := self.now.get(node.id)) is not None and time > before.start:
            self.stays.append(replace(before, end=time))
        self.parents[node.id] = node.parent
        pages = f"{node.pages} page{'s' * (node.pages != 1)}"
        about = f"{pages}, lock_ref {node.lock_ref}: {node.state}"
        self.now[node.id] = Stay(
            f"node {node.id}", node.state, time, time, node.tokens, "", about,
            "root" if node.parent == ROOT else f"node {node.parent}",
            tuple(sorted(self.locks.get(node.id, ()))),
        )  # fmt: skip

    def all_stays(self, end: int) -> tuple[Stay, ...]:
        """What has been, and what still is at the end of the run."""
        last = [replace(stay, end=end) for stay in self.now.values() if end > stay.start]
        return tuple(sorted(self.stays + last, key=lambda stay: (stay.start, stay.place)))

    def places(self) -> tuple[str, ...]:
        """Depth first. A split only comes between two nodes, so the order holds at any moment."""
        children: dict[int, list[int]] = {}
        for node_id, parent in sorted(self.parents.items()):
            children.setdefault(parent, []).append(node_id)
        found, waiting = [], children.get(ROOT, [])[::-1]
        while waiting:
            found.append(waiting.pop())
            waiting += children.get(found[-1], [])[::-1]
        return tuple(f"node {node_id}" for node_id in found)
