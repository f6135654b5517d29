"""One picture of the radix tree: the root at the left, a box a node, a row a leaf."""

from __future__ import annotations

from ..svg_style import char_width
from .marks import number
from .page import Page
from .radix_tree import ROOT, Moment, Node, Tree
from .shapes import path, rect, text
from .wording import many, short

MOST_LEAVES, MOST_LEVELS = 14, 10
ROOT_WIDTH, PITCH, GAP, ROW, BOX = 44, 168, 22, 44, 36  # pixels


def panel_size(tree: Tree) -> tuple[float, float]:
    """Width and height that a tree asks for."""
    part = shown(tree)
    height = max(1, len(_leaves(part))) * ROW
    return ROOT_WIDTH + _depth(part) * PITCH, height + 14 * (len(part.nodes) < len(tree.nodes))


def shown(tree: Tree) -> Tree:
    """The part that there is room for: of many leaves the first, of many levels the upper ones."""
    paths = {node_id: tree.path(node_id) for node_id in tree.nodes}
    upper = Tree({at: tree.nodes[at] for at, path in paths.items() if len(path) <= MOST_LEVELS})
    kept = {node.id for leaf in _leaves(upper)[:MOST_LEAVES] for node in paths[leaf]}
    return Tree({at: node for at, node in tree.nodes.items() if at in kept})


def draw_tree(
    page: Page, tree: Tree, moment: Moment, left: float, top: float, width: float
) -> None:
    """The tree inside a width, as far as it is shown."""
    part = shown(tree)
    pitch = min(PITCH, (width - ROOT_WIDTH) / max(1, _depth(part)))
    changed = {number(mark, "node") for mark in moment.marks if mark.name != "radix lock"}
    rows = _rows(part)
    middle = top + rows[ROOT] * ROW + BOX / 2
    page.add(rect("queued", left, middle - 11, ROOT_WIDTH - GAP / 2, 22, "the root"))
    page.add(text(left + (ROOT_WIDTH - GAP / 2) / 2, middle + 4, "root", "small", "middle"))
    for node in part.nodes.values():
        level = len(part.path(node.id))
        x, y = left + ROOT_WIDTH + (level - 1) * pitch, top + rows[node.id] * ROW
        above = top + rows[node.parent] * ROW + BOX / 2
        page.add(_link(x - (GAP / 2 if level == 1 else GAP), above, x, y + BOX / 2))
        _draw_node(page, node, x, y, pitch - GAP, node.id in changed)
    if more := len(tree.nodes) - len(part.nodes):
        below = top + len(_leaves(part)) * ROW + 8
        page.add(text(left, below, f"… and {more} more nodes", "small faint"))


def _draw_node(page: Page, node: Node, x: float, y: float, width: float, changed: bool) -> None:
    kind = node.state + (" changed" if changed else "")
    pages, locks = many(node.pages, "page"), many(node.lock_ref, "lock")
    about = f"node {node.id}: tokens {node.tokens}; {pages}; {locks}; {node.state}"
    held = f"{pages}, {locks if node.lock_ref else node.state}"
    page.add(
        rect(kind, x, y, width, BOX, about, node=node.id, parent=node.parent, pages=node.pages,
             lock=node.lock_ref, state=node.state)
    )  # fmt: skip
    most = int((width - 8) / char_width(11))
    ink = f"small in-{node.state}"
    tokens = short(node.tokens, int((width - 14) / char_width(11, True)))
    page.add(text(x + width / 2, y + 15, tokens, f"{ink} bold", "middle"))
    words = next((w for w in (held, pages) if len(w) <= most), f"{node.pages} p")
    page.add(text(x + width / 2, y + 29, words, ink, "middle"))


def _link(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    d = f"M{x1:.1f} {y1:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return path("link", d)


def _rows(tree: Tree) -> dict[int, float]:
    """Each node's row: leaves one below the other, a parent in the middle of its children."""
    rows: dict[int, float] = {leaf: at for at, leaf in enumerate(_leaves(tree))}
    below = _below(tree)
    for node_id in reversed(_order(tree)):
        if children := below.get(node_id):
            rows[node_id] = sum(rows[child] for child in children) / len(children)
    return {ROOT: 0.0} | rows


def _order(tree: Tree) -> list[int]:
    """Root and nodes, parents before children, one branch after the other, the oldest first."""
    below, order, stack = _below(tree), list[int](), [ROOT]
    while stack:
        order.append(stack.pop())
        stack += reversed(below.get(order[-1], []))
    return order


def _below(tree: Tree) -> dict[int, list[int]]:
    """Children by parent."""
    below: dict[int, list[int]] = {}
    for node_id in sorted(tree.nodes):
        below.setdefault(tree.nodes[node_id].parent, []).append(node_id)
    return below


def _leaves(tree: Tree) -> list[int]:
    below = _below(tree)
    return [node_id for node_id in _order(tree) if node_id not in below and node_id != ROOT]


def _depth(tree: Tree) -> int:
    return max((len(tree.path(node_id)) for node_id in tree.nodes), default=0)
