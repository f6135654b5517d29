"""A node of the radix tree: where a cached prefix ends or two of them part."""

from __future__ import annotations

from dataclasses import dataclass, field

from .radix_edge import Edge


@dataclass(eq=False, slots=True)
class TreeNode:
    """The end of a prefix (SGLang ``mem_cache/radix_cache.py:TreeNode``).

    Times are those of the cache's logical clock.
    """

    parent: TreeNode | None  # None for the root, and for a node that was evicted
    edge: Edge  # the pages between the parent and here
    creation_time: int
    last_access_time: int
    id: int = 0  # for the trace; the root's is 0
    hit_count: int = 0  # insertions that made it or found it there
    lock_ref: int = 0  # locks held on this node or below it
    children: dict[tuple[int, ...], TreeNode] = field(default_factory=dict)  # by their first page

    @property
    def is_evictable_leaf(self) -> bool:
        """Whether it may go: nothing hangs on it, neither a child nor a lock."""
        return not self.children and not self.lock_ref

    def add_child(self, child: TreeNode) -> None:
        """Hang a node on this one, in the place of any that begins with the same page."""
        child.parent = self
        self.children[child.edge.first_page] = child

    def split(self, num_pages: int, id: int) -> TreeNode:
        """Put a node into the edge above, after ``num_pages`` of it, and return that node.

        This one stays the lower end, so whoever holds a lock on it still holds the whole path.
        """
        front = self.edge.cut(num_pages)
        node = TreeNode(None, front, self.creation_time, self.last_access_time, id)
        node.hit_count, node.lock_ref = self.hit_count, self.lock_ref
        assert self.parent is not None, "the root has no edge to split"
        self.parent.add_child(node)
        node.add_child(self)
        return node

    def remove(self) -> TreeNode:
        """Take a leaf out of the tree, and return the parent it had."""
        parent, self.parent = self.parent, None
        assert parent is not None, "the root is never removed"
        del parent.children[self.edge.first_page]
        return parent
