"""The law *leak* for the prefix cache: its locks, sizes and parts agree, and it evicts in order.

A cache counts much twice, so that a step costs little: the sizes, the locks of each node, and the
leaves that can be evicted. After each turn all of it is counted anew, from the nodes and from the
leases that are not released. Each eviction is compared with a search of the whole tree, or with the
order in which blocks were released. A pass looks up the waiting requests when their rule and their
order ask for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from ..core import Lease, Request
from ..engine.engine import Engine
from ..memory import BlockPool, Match, RadixCache
from ..memory.block_pool import Block, Chain
from ..memory.radix_cache import Insertion, TreeNode
from ..policy.waiting import CACHE_AWARE
from ..scheduler import Scheduler
from .history import many

KEYS: dict[str, Callable[[TreeNode], tuple[int, ...]]] = {
    "lru": lambda node: (node.last_access_time,),
    "lfu": lambda node: (node.hit_count, node.last_access_time),
    "fifo": lambda node: (node.creation_time,),
}
"""The order of eviction by policy, written a second time: the least goes first."""
PASSES = 32  # with requests in the queue, from one refresh of their prefixes to the next


def nodes_of(tree: RadixCache) -> list[TreeNode]:
    """Return all nodes of a tree except the root, parents first."""
    found, todo = list[TreeNode](), [tree.root_node]
    while todo:
        todo += (children := [*todo.pop().children.values()])
        found += children
    return found


def path_up(node: TreeNode) -> Iterator[TreeNode]:
    """Yield a node and those above it, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def pages_locked_once(node: TreeNode | Chain | None) -> int:
    """Return the cached pages of a lease that it alone locks, by its node or its blocks."""
    if isinstance(node, TreeNode):
        return sum(it.num_pages for it in path_up(node) if it.lock_ref == 1)
    return sum(block.ref_cnt == 1 for block in node or ())


class PrefixAudit:
    """Follows the prefix cache of one engine; ``found`` are the sentences found so far."""

    def __init__(self, engine: Engine) -> None:
        self.leases, self.found = engine.scheduler.leases, list[str]()
        self.cache = self.leases.cache
        self.finds_all = engine.scheduler.config.in_force.block_line == "hashed_last"
        self.looked_up = list[Sequence[int]]()  # tokens of the look-ups in this pass
        if isinstance(self.cache, RadixCache):
            self.watch(self.cache)
            self.watch_queue(engine.scheduler, self.cache)
        else:
            self.watch_blocks(self.cache)

    def watch(self, tree: RadixCache) -> None:
        """Observe the look-ups and evictions of a tree."""
        match_prefix, evict = tree.match_prefix, tree.evict

        def matched(tokens: Sequence[int]) -> Match:
            """Check that a look-up counts as a use of all that it finds."""
            self.looked_up.append(tokens)
            times = {node: node.last_access_time for node in nodes_of(tree)}
            match, newest = match_prefix(tokens), max(times.values(), default=0)
            for node in path_up(match.node):
                if node in times and node.last_access_time <= newest:
                    self.found.append(f"a look-up does not count as a use of node {node.id}")
            return match

        def evicted(num_pages: int) -> list[int]:
            """Compare an eviction with a search for the least of all unlocked leaves."""
            children = {node: len(node.children) for node in nodes_of(tree)}
            expected = list[int]()
            while len(expected) < num_pages:
                leaves = [it for it, count in children.items() if not (count or it.lock_ref)]
                if not leaves:
                    break
                leaf = min(leaves, key=KEYS[tree.policy])
                expected += leaf.pages
                del children[leaf]
                if leaf.parent in children:
                    children[leaf.parent] -= 1
            pages = evict(num_pages)
            if pages != expected:
                self.found.append(
                    f"the cache evicts the pages {pages}, but by {tree.policy} those are {expected}"
                )
            return pages

        tree.match_prefix, tree.evict = matched, evicted  # type: ignore[method-assign]
        if tree.policy == "lfu":
            self.watch_hits(tree)

    def watch_hits(self, tree: RadixCache) -> None:
        """Observe the hits by which ``lfu`` evicts: each insertion counts one on its path.

        A request does not count the nodes that it has inserted before.
        """
        insert, on_split = tree.insert, tree.on_split

        def inserted(
            tokens: Sequence[int], pages: Sequence[int], inserted_pages: int = 0
        ) -> Insertion:
            """Compare the hits of the nodes that were there before."""
            before = {node: node.hit_count for node in nodes_of(tree)}
            found, length = insert(tokens, pages, inserted_pages), 0
            for node in reversed([*path_up(found.node)]):
                length += node.num_pages
                hits = node.hit_count - before.get(node, node.hit_count)
                if node in before and hits != (length > inserted_pages):
                    self.found.append(f"an insertion counts {many(hits, 'hit')} of node {node.id}")
            return found

        def split(upper: TreeNode, lower: TreeNode, now: int) -> None:
            """Check that both halves of an edge have its hits."""
            on_split(upper, lower, now)
            if upper.hit_count != lower.hit_count:
                self.found.append(f"node {upper.id} has not the hits of node {lower.id} below it")

        tree.insert, tree.on_split = inserted, split  # type: ignore[method-assign]

    def watch_blocks(self, pool: BlockPool) -> None:
        """Observe the blocks that become unused, and compare each eviction with their order.

        A lease releases its last block first. A block without a hash is evicted before all others;
        by the rule ``one_line`` a page that never had one keeps its turn.
        """
        line = list[int]()  # unused pages, the next to evict first
        insert, retain, evict = pool.insert, pool.retain, pool.evict
        lock, unlock, forget = pool.inc_lock_ref, pool.dec_lock_ref, pool.forget

        def inserted(tokens: Sequence[int], pages: Sequence[int]) -> Insertion:
            """Record new blocks, which no lease has locked yet."""
            found = insert(tokens, pages)
            line.extend(block.page for block in found.node[found.num_cached_pages :])
            return found

        def locked(node: Chain) -> None:
            """Record blocks that are used."""
            for block in node:
                if block.page in line:
                    line.remove(block.page)
            lock(node)

        def unlocked(node: Chain) -> None:
            """Record blocks that no lease uses any more."""
            unlock(node)
            for block in reversed(node):
                if not block.ref_cnt:
                    line.insert(len(line) if block.block_hash else 0, block.page)

        def forgotten(node: Sequence[Block]) -> None:
            """Record unused blocks that lose their hashes."""
            forget(node)
            for block in node:
                if block.page in line:
                    line.remove(block.page)
                    line.insert(0, block.page)

        def retained(pages: Sequence[int]) -> Sequence[int]:
            """Record pages of a released lease that are not freed."""
            freed = retain(pages)
            line.extend(page for page in reversed(pages) if page not in freed)
            return freed

        def evicted(num_pages: int) -> list[int]:
            """Compare an eviction with the order of the unused blocks."""
            expected, pages = line[:num_pages], evict(num_pages)
            del line[:num_pages]
            if pages != expected:
                self.found.append(
                    f"the cache evicts the pages {pages}, but those released first are {expected}"
                )
            return pages

        pool.insert, pool.retain, pool.evict = inserted, retained, evicted  # type: ignore[method-assign]
        pool.inc_lock_ref, pool.dec_lock_ref = locked, unlocked  # type: ignore[method-assign]
        pool.forget = forgotten  # type: ignore[method-assign]

    def watch_queue(self, scheduler: Scheduler, tree: RadixCache) -> None:
        """Observe the passes through the queue, which refresh the prefixes of waiting requests."""
        queue, policy = scheduler.waiting_queue, scheduler.config.schedule_policy
        in_order, num_passes = queue.in_order, 0
        is_refreshed = scheduler.config.in_force.waiting_prefixes == "refreshed"

        def passed() -> Iterator[Request]:
            """Compare the look-ups at the start of a pass with those of the rule."""
            nonlocal num_passes
            by_cache = policy in CACHE_AWARE
            expected = list(queue.waiting) if by_cache else []
            self.looked_up.clear()
            heads = in_order()
            if is_refreshed and tree.policy == "lru" and queue.waiting and not by_cache:
                if num_passes % PASSES == 0:
                    expected = [*reversed(queue.waiting)]
                num_passes += 1
            if self.looked_up != [req.known_tokens(0, req.known_len) for req in expected]:
                step = scheduler.leases.launched_step + 1
                self.found.append(
                    f"the pass for step {step} looks up {len(self.looked_up)} prefixes of waiting "
                    f"requests, but by its rule and order those of {len(expected)}, each in turn"
                )
            return heads

        queue.in_order = passed  # type: ignore[method-assign]

    def look(self) -> None:
        """Count the parts of the cache anew, after a turn."""
        leases = [*self.leases.table.req_to_token.values()]
        held = [lease for lease in leases if not lease.is_released and lease.node is not None]
        if self.found or not (held or self.cache.evictable_size or self.cache.protected_size):
            return
        audit = self.of_tree if isinstance(self.cache, RadixCache) else self.of_blocks
        self.found += audit(held)

    def of_tree(self, held: Sequence[Lease]) -> Iterator[str]:
        """Yield what differs in a tree."""
        tree = self.cache
        assert isinstance(tree, RadixCache)
        locks = Counter(node for lease in held for node in path_up(lease.node))
        unlocked = locked = 0
        for node in nodes_of(tree):
            if node.lock_ref != locks[node]:
                have = many(locks[node], "lease")
                yield f"node {node.id} of the cache has {node.lock_ref} locks, but {have} read it"
            if node.parent is None or node.parent.children.get(node.first_page) is not node:
                yield f"node {node.id} of the cache is not below its parent"
            if len(node.tokens) != node.num_pages * tree.page_size:
                yield f"node {node.id} has {len(node.tokens)} tokens for {node.num_pages} pages"
            unlocked += 0 if node.lock_ref else node.num_pages
            locked += node.num_pages if node.lock_ref else 0
        yield from self.of_sizes(unlocked, locked)

    def of_blocks(self, held: Sequence[Lease]) -> Iterator[str]:
        """Yield what differs in a map of blocks."""
        pool = self.cache
        assert isinstance(pool, BlockPool)
        users = Counter(block.page for lease in held for block in lease.node)
        for page, block in pool.blocks.items():
            if block.ref_cnt != users[page]:
                have = many(users[page], "lease")
                yield f"page {page} of the cache has {block.ref_cnt} users, but {have} read it"
            by_hash = pool.cached_block_hash_to_block.get(block.block_hash or b"", {})
            is_hashed = block.block_hash is not None and self.finds_all
            if is_hashed and by_hash.get(page) is not block:
                yield f"page {page} of the cache can't be found by its hash"
        if lost := [page for page in users if page not in pool.blocks]:
            yield f"page {lost[0]} is read by a lease, but is not in the cache"
        yield from self.of_sizes(
            sum(not block.ref_cnt for block in pool.blocks.values()),
            sum(bool(block.ref_cnt) for block in pool.blocks.values()),
        )

    def of_sizes(self, unlocked: int, locked: int) -> Iterator[str]:
        """Yield a sentence if the cache counts other sizes."""
        counted = self.cache.evictable_size, self.cache.protected_size
        if counted != (unlocked, locked):
            yield (
                f"the cache counts {counted[0]} pages that can be evicted and {counted[1]} in use, "
                f"but it has {unlocked} and {locked}"
            )
