"""Lesson 5, shared pages: where two prompts part, what a lock protects, what is evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

from ...checks.case import Case
from ...checks.history import many
from ...memory.radix_cache import RadixCache, TreeNode
from ...museum.exhibit import case
from ..exercise import COST, Exercise, Function, Workloads, is_large, of_any_size
from ..guard import Mistake
from .l04_long_prompt import crowd

# -- What all three are held against ---------------------------------------------------------------


def conversations(seed: int) -> Case:
    """Prompts that begin alike, one or two at a time, in a memory that cannot keep them all."""
    return crowd(
        seed, count=(4, 7), turns=(0, 30), prompt=(2, 4), new=(2, 3), room=(0.25, 0.4),
        begins=("7 3 1 18 4", "7 3 1 9 16 5 0 2", "12 8 8 6 1 2 17 10"), pages=(1, 1, 2, 4),
        rows=(1, 1, 2), chunked_prefill_size=16,
    )  # fmt: skip


LONG = case(  # a prefix is read for longer than any other one was unused
    "long: 1 2 3 4 5 6 -> 18; x at 3: 7 8 9 10 11 -> 2; y at 8: 12 13 14 15 16 -> 2; "
    "z at 13: 17 18 7 9 11 -> 2; long2 at 20: 1 2 3 4 5 6 7 -> 2",
    "overlap", kv=33, rows=2, chunked_prefill_size=16, cost=COST,
)  # fmt: skip
SHOWN = case(
    "abc: 1 2 3 4 5 6 7 8 9 -> 3; afg at 3: 1 2 3 4 10 11 12 -> 3; "
    "x at 12: 13 14 15 16 17 18 13 14 15 -> 3; abc2 at 20: 1 2 3 4 5 6 7 8 9 2 -> 3",
    "overlap", kv=24, rows=2, chunked_prefill_size=16, cost=COST,
)  # fmt: skip

COME_BACK = case(
    "a: 1 2 3 4 5 6 -> 2; b at 7: 11 12 13 14 15 16 -> 3; c at 14: 18 17 16 15 -> 2; "
    "b2 at 21: 11 12 13 14 15 17 -> 2; c2 at 28: 18 17 16 9 -> 3; a2 at 35: 1 2 3 4 5 7 -> 3",
    "overlap", kv=16, rows=1, chunked_prefill_size=16, cost=COST,
)  # fmt: skip

AGAIN = case(  # they part, and agree again
    "a: 1 2 3 4 -> 2; b at 7: 1 9 3 4 5 -> 2", "overlap", kv=24, rows=1, cost=COST,
)  # fmt: skip
CASES = (SHOWN, AGAIN, COME_BACK, LONG, *map(conversations, range(9)))

# -- to_lock: the nodes of a prefix ----------------------------------------------------------------


def each_once(lines: Callable[..., Any], tree: RadixCache, node: Any) -> list[Any]:
    """Call the learner's ``to_lock`` as the method.

    Raises:
        Mistake: it gives a node twice.
    """
    nodes = list(lines(node))
    if len({*map(id, nodes)}) < len(nodes):
        raise Mistake("`to_lock` gave a node twice, but a request has one lock on each node")
    return nodes


class AboveNode(NamedTuple):
    """A node of the tree: its name, and the node above it."""

    name: str
    parent: AboveNode | None

    def __repr__(self) -> str:
        return f"{self.parent}/{self.name}" if self.parent else self.name


def end_of_a_prefix(random: Random) -> tuple[AboveNode]:
    """The root, or a node below it."""
    node = AboveNode("root", None)
    depth = of_any_size(random, 6, 60) if is_large(random) else random.randint(0, 6)
    for at in range(depth):
        node = AboveNode(f"n{at}", node)
    return (node,)


# -- shared_pages: within an edge of the tree ------------------------------------------------------


def within_an_edge(
    lines: Callable[..., Any], node: TreeNode, tokens: Sequence[int], offset: int
) -> int:
    """Call the learner's ``shared_pages`` with the edge's tokens and the rest of the prompt's."""
    return int(lines(list(node.tokens), list(tokens[offset:]), node.page_size))


def edge_and_prompt(random: Random) -> tuple[list[int], list[int], int]:
    """An edge of whole pages, and a prompt; one time in five not even the first page is the same.

    Python has one object for each small integer, but two for two large ones that are equal.
    """
    size, pages = random.choice((1, 2, 4)), random.randint(1, 4)
    if is_large(random):
        pages = of_any_size(random, 5, 600)
    edge = [random.randrange(1000, 1003) for _ in range(size * pages)]
    least, most = (0, size - 1) if random.random() < 0.2 else (size, len(edge))
    same = [int(str(token)) for token in edge[: random.randint(least, most)]]
    rest = [random.randrange(1000, 1003) for _ in range(random.randint(0 if same else 1, 9))]
    return edge, same + rest, size


# -- evict: one leaf after the other, whichever the learner names ----------------------------------


class Leaf(NamedTuple):
    """The end of a cached prefix: its pages, the locks on it, and when it was used last."""

    num_pages: int
    lock_ref: int
    last_used: int
    node: Any  # a ``TreeNode``

    def __repr__(self) -> str:
        pages, locks = many(self.num_pages, "page"), many(self.lock_ref, "lock")
        return f"<leaf: {pages}, {locks}, used at {self.last_used}>"


def leaves_of(tree: RadixCache) -> Iterator[Leaf]:
    """All leaves of a tree, locked or not."""
    below = [tree.root_node]
    while below:
        node = below.pop()
        below += node.children.values()
        if node.parent is not None and not node.children:
            yield Leaf(node.num_pages, node.lock_ref, node.last_access_time, node)


def some_leaves(random: Random) -> tuple[list[Leaf]]:
    """Leaves that were last used at different times; at least one has no lock."""
    count, latest, pages = random.randint(1, 4), random.choice((5, 9, 30, 10_000)), 9
    if is_large(random):
        count, latest, pages = of_any_size(random, 5, 300), of_any_size(random, 1000, 10**6), 2000
    locks = random.sample([0, *(random.choice((0, 0, 0, 1, 2)) for _ in range(count - 1))], count)
    times = random.sample(range(latest), count)
    return (
        [Leaf(random.randint(1, pages), *pair, None) for pair in zip(locks, times, strict=True)],
    )


def one_by_one(lines: Callable[..., Any], tree: RadixCache, num_pages: int) -> list[int]:
    """Evict as ``RadixCache.evict``, leaf by leaf as the learner's ``evict`` names them.

    Raises:
        ValueError: it names none of them.
    """
    evicted: list[int] = []
    while len(evicted) < num_pages and tree.evictable_size:
        leaves = sorted(leaves_of(tree), key=lambda leaf: list(leaf.node.tokens))  # not by age
        chosen = lines(list(leaves))
        if chosen not in leaves:
            raise ValueError(f"evict gave {chosen!r}, which is not one of the leaves")
        leaf: TreeNode = chosen.node
        parent, leaf.parent = leaf.parent, None
        assert parent is not None
        del parent.children[leaf.first_page]
        evicted += leaf.pages
        if leaf.lock_ref:
            tree.protected_size -= leaf.num_pages
        else:
            tree.evictable_size -= leaf.num_pages
        tree.recorder.mark("radix evict", node=leaf.id, pages=leaf.num_pages)
    return evicted


EXERCISES = (
    Exercise(
        name="shared_pages",
        hole=Function(
            "memory.radix_cache:TreeNode.shared_pages", within_an_edge, asked=edge_and_prompt
        ),
        solution="""
            def shared_pages(edge, tokens, page_size):
                same = 0
                while same < len(edge) and same < len(tokens) and edge[same] == tokens[same]:
                    same += 1
                return same // page_size
        """,
        workloads=Workloads(seeds=0, cases=CASES, show=SHOWN),
        no_worse=(("prompt tokens computed", 1.0),),
        picture="radix_cache",
        beside="",
        hints=(
            "Compare token by token, from the beginning. Where must you stop?",
            "At the first token that differs, or at the end of the shorter one.",
            "A page that is shared in part is not shared at all: `// page_size`.",
        ),
        why=(
            "The KV of a token depends on every token before it, so only what begins the same can "
            "be shared. With one token too many, an answer is about another request's question. "
            "Next: what keeps a shared page from being evicted?"
        ),
    ),
    Exercise(
        name="to_lock",
        hole=Function(
            "memory.radix_cache:RadixCache._path", each_once, asked=end_of_a_prefix,
            counts=lambda nodes, *args: (type(nodes), sorted(node.name for node in nodes)),
        ),
        solution="""
            def to_lock(node):
                path = []
                while node.parent is not None:
                    path.append(node)
                    node = node.parent
                return path
        """,
        workloads=Workloads(seeds=0, cases=CASES, show=SHOWN),
        reach=1,
        picture="radix_cache",
        beside="",
        hints=(
            "A request reads all of a prefix. Where does that lie, if the node is only its end?",
            "On the way up: `node.parent`, and the parent of that. The root's parent is None.",
            "The root has no page, so nothing of it needs a lock.",
        ),
        why=(
            "A prefix is a path, so a lock counts on every node of it. It is a count because two "
            "requests may read the same prefix, and the first who ends must not unlock it for the "
            "other. A node without a lock may be evicted: that is exercise 3."
        ),
    ),
    Exercise(
        name="evict",
        hole=Function("memory.radix_cache:RadixCache.evict", one_by_one, asked=some_leaves),
        solution="""
            def evict(leaves):
                free = [leaf for leaf in leaves if leaf.lock_ref == 0]
                return min(free, key=lambda leaf: leaf.last_used)
        """,
        workloads=Workloads(seeds=0, cases=CASES, show=COME_BACK),
        no_worse=(("prompt tokens computed", 1.0),),
        reach=3,
        picture="radix_cache",
        beside="",
        hints=(
            "Which of them must never be evicted?",
            "One with `lock_ref` above 0 is being read. Which of the others was used longest ago?",
            "`min` of the free ones, with `key=lambda leaf: leaf.last_used`.",
        ),
        why=(
            "A leaf that no request reads can be evicted, and with it only the end of a prefix. "
            "The leaf with the oldest use is the best guess at what no request will need again. "
            "When its parent becomes a leaf, that one is next in line."
        ),
    ),
)  # fmt: skip
