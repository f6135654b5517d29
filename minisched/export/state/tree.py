"""The radix tree at any moment: a stay of a node ends where something about the node changes."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ...trace import Mark, Trace
from ...trace.sides import shown_side
from ..views.marks import NothingToShow, lacking, named, number, word
from .stay import Panel, Stay

# -- The radix tree as it was at any moment, rebuilt from the marks that the cache leaves ----------

CHANGES = ("radix add", "radix split", "radix evict", "radix lock")
ROOT = 0  # the root's id


@dataclass
class Node:
    """A node as the marks tell it."""

    id: int
    parent: int
    pages: int
    tokens: str  # the first few, as text
    page_ids: tuple[int, ...] = ()  # which pages, as far as the trace says
    lock_ref: int = 0
    evicted: bool = False

    @property
    def state(self) -> str:
        """protected, evictable or evicted."""
        return "evicted" if self.evicted else "protected" if self.lock_ref else "evictable"


@dataclass
class Tree:
    """Nodes by id; ``apply`` makes one mark true."""

    nodes: dict[int, Node] = field(default_factory=dict)

    def apply(self, mark: Mark) -> None:
        """Let happen what a mark says.

        Raises:
            NothingToShow: it names a node that is not there.
        """
        node_id = number(mark, "node")
        if mark.name == "radix add":
            parent, pages = number(mark, "parent"), number(mark, "pages")
            if parent != ROOT:
                self._node(mark, "parent")
            self.nodes[node_id] = Node(
                node_id, parent, pages, word(mark, "tokens"), _page_ids(mark)
            )
        elif mark.name == "radix split":
            self._split(mark)
        elif mark.name == "radix evict":
            self._node(mark, "node").evicted = True
        elif mark.name == "radix lock" and node_id != ROOT:
            for node in self.path(self._node(mark, "node").id):
                node.lock_ref += number(mark, "delta")

    def path(self, node_id: int) -> list[Node]:
        """The nodes from one up, without the root.

        Raises:
            NothingToShow: one of them was evicted, or never added.
        """
        nodes = []
        while node_id != ROOT:
            if node_id not in self.nodes:
                raise NothingToShow(f"a node hangs on the node {node_id}, which is not there.")
            nodes.append(self.nodes[node_id])
            node_id = self.nodes[node_id].parent
        return nodes

    def bury(self) -> None:
        """Forget what was evicted."""
        self.nodes = {at: node for at, node in self.nodes.items() if not node.evicted}

    def size(self, state: str) -> int:
        """Pages in that state."""
        return sum(node.pages for node in self.nodes.values() if node.state == state)

    def _node(self, mark: Mark, name: str) -> Node:
        if (node_id := number(mark, name)) not in self.nodes:
            raise lacking(mark, f"the node {node_id}, which was never added,")
        return self.nodes[node_id]

    def _split(self, mark: Mark) -> None:
        """A node comes into the edge above a child: it takes the front, and holds every lock."""
        node_id, pages = number(mark, "node"), number(mark, "pages")
        lower = self._node(mark, "child")
        tokens = word(mark, "tokens")
        front, rest = lower.page_ids[:pages], lower.page_ids[pages:]
        self.nodes[node_id] = Node(node_id, lower.parent, pages, tokens, front, lower.lock_ref)
        lower.parent, lower.pages = node_id, lower.pages - pages
        lower.tokens, lower.page_ids = word(mark, "child_tokens"), rest


def _page_ids(mark: Mark) -> tuple[int, ...]:
    """Which pages a new node has; older traces do not say."""
    words = str(mark.attrs.get("page_ids", "")).split()
    return tuple(int(text) for text in words if text.isdecimal())


@dataclass(frozen=True)
class Moment:
    """Everything that happened to the tree at one time, and its pages after that."""

    time: int
    marks: tuple[Mark, ...]
    protected: int
    evictable: int

    def count(self, name: str) -> int:
        """How often something happened."""
        return sum(mark.name == name for mark in self.marks)


def moments_of(trace: Trace) -> list[Moment]:
    """Every time at which the tree changed."""
    by_time: dict[int, list[Mark]] = {}
    for mark in named(trace, *CHANGES):
        by_time.setdefault(mark.time, []).append(mark)
    tree, found = Tree(), []
    for time, marks in by_time.items():
        for mark in marks:
            tree.apply(mark)
        sizes = tree.size("protected"), tree.size("evictable")
        found.append(Moment(time, tuple(marks), *sizes))
        tree.bury()
    return found


def tree_at(trace: Trace, time: int) -> Tree:
    """The tree after everything up to ``time``; what was evicted just then is still listed."""
    tree, now = Tree(), -1
    for mark in named(trace, *CHANGES):
        if mark.time <= time:
            if mark.time != now:
                tree.bury()
            now = mark.time
            tree.apply(mark)
    return tree


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


def read(tokens: str) -> str:
    """A node's first tokens, as text before the numbers where all of them are printable bytes."""
    ids = [int(word) for word in tokens.split() if word.isdecimal()]
    if not ids or not all(32 <= byte < 127 for byte in ids):
        return tokens
    return f'"{bytes(ids).decode()}" {tokens}'


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
            f"node {node.id}", node.state, time, time, read(node.tokens), "", about,
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
