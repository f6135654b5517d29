"""One picture of the radix tree: the root at the left, a box a node, a row a leaf."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..svg_style import char_width
from .page import Page
from .radix_story import order
from .radix_tree import ROOT, Node, Tree
from .radix_words import held
from .shapes import path, rect, text
from .wording import many, short

MOST_LEAVES, MOST_LEVELS = 14, 10
ROOT_WIDTH, PITCH, GAP, ROW, BOX = 44, 168, 22, 44, 36  # pixels


@dataclass(frozen=True)
class TreePanel:
    """A tree with what is to be seen in it. ``name`` says which picture it is (``2 before``)."""

    name: str
    tree: Tree
    changed: Collection[int] = ()  # node ids with a bold border
    lockers: Mapping[int, list[str]] | None = None


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


def draw_tree(page: Page, panel: TreePanel, left: float, top: float, width: float) -> None:
    """The tree inside a width, as far as it is shown."""
    part = shown(panel.tree)
    pitch = min(PITCH, (width - ROOT_WIDTH) / max(1, _depth(part)))
    rows = _rows(part)
    middle = top + rows[ROOT] * ROW + BOX / 2
    page.add(rect("queued", left, middle - 11, ROOT_WIDTH - GAP / 2, 22, "the root"))
    page.add(text(left + (ROOT_WIDTH - GAP / 2) / 2, middle + 4, "root", "small", "middle"))
    for level, node in order(part):
        x, y = left + ROOT_WIDTH + level * pitch, top + rows[node.id] * ROW
        above = top + rows[node.parent] * ROW + BOX / 2
        page.add(_link(x - (GAP if level else GAP / 2), above, x, y + BOX / 2))
        _draw_node(page, node, panel, x, y, pitch - GAP)
    if more := len(panel.tree.nodes) - len(part.nodes):
        below = top + len(_leaves(part)) * ROW + 8
        page.add(text(left, below, f"… and {more} more nodes", "small faint"))


def _draw_node(page: Page, node: Node, panel: TreePanel, x: float, y: float, width: float) -> None:
    kind = node.state + (" changed" if node.id in panel.changed else "")
    pages, locks = many(node.pages, "page"), held(node, (panel.lockers or {}).get(node.id, []))
    about = f"node {node.id}: tokens {node.tokens}; {pages}; {locks}"
    page.add(
        rect(kind, x, y, width, BOX, about, node=node.id, parent=node.parent, pages=node.pages,
             lock=node.lock_ref, state=node.state, panel=panel.name)
    )  # fmt: skip
    most = int((width - 8) / char_width(11))
    ink = f"small in-{node.state}"
    tokens = short(node.tokens, int((width - 14) / char_width(11, True)))
    page.add(text(x + width / 2, y + 15, tokens, f"{ink} bold", "middle"))
    counted = many(node.lock_ref, "lock") if node.lock_ref else node.state
    options = (f"{pages}, {locks}", f"{pages}, {counted}", pages)
    words = next((words for words in options if len(words) <= most), f"{node.pages} p")
    page.add(text(x + width / 2, y + 29, words, ink, "middle"))


def _link(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    d = f"M{x1:.1f} {y1:.1f}C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    return path("link", d)


def _rows(tree: Tree) -> dict[int, float]:
    """Each node's row: leaves one below the other, a parent in the middle of its children."""
    rows: dict[int, float] = {leaf: at for at, leaf in enumerate(_leaves(tree))}
    below: dict[int, list[int]] = {}
    for _, node in order(tree):
        below.setdefault(node.parent, []).append(node.id)
    for node_id in [*(node.id for _, node in reversed(order(tree))), ROOT]:
        if children := below.get(node_id):
            rows[node_id] = sum(rows[child] for child in children) / len(children)
    return {ROOT: 0.0} | rows


def _leaves(tree: Tree) -> list[int]:
    parents = {node.parent for node in tree.nodes.values()}
    return [node.id for _, node in order(tree) if node.id not in parents]


def _depth(tree: Tree) -> int:
    return max((level + 1 for level, _ in order(tree)), default=0)
