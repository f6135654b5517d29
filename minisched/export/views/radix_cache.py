"""The prefix cache's tree, before and after what changed it: shared, locked, and given up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from ...trace import Trace
from ..puml_style import creole
from ..state.tree import ROOT, Moment, Node, Tree, moments_of, tree_at
from ..state.tree import tree as tree_panel
from ..svg import char_width
from ..units import ms
from .axes import TimeAxis, ValueAxis, most, stacked, step_area
from .marks import NothingToShow, many, named, number, short, word
from .page import EDGE, SIGNS, Page, about_run, labels, line, path, rect, svg_text
from .page import svg_text as write
from .page_allocator import evictions
from .puml_stays import fill, ink, legend
from .text_page import GLYPHS, TextPage

# -- What happens to the radix tree, in words ------------------------------------------------------

WORDS = {"insert": "inserted", "admit": "admitted", "retraction": "retracted", "finish": "ended"}


def held(node: Node, rids: list[str]) -> str:
    """By whom a node is locked, as far as it is known for sure; else how often."""
    if not node.lock_ref:
        return node.state
    if len(rids) == node.lock_ref:
        return f"locked by {', '.join(rids)}"
    return many(node.lock_ref, "lock")


def story(trace: Trace, moment: Moment) -> str:
    """What happened, in words."""
    whose: dict[str, dict[str, None]] = {}  # what became of each request, in order
    for mark in named(trace, *WORDS):
        if mark.time == moment.time:
            whose.setdefault(word(mark, "rid"), {})[WORDS[mark.name]] = None
    taken = sum(number(mark, "delta") > 0 for mark in moment.marks if mark.name == "radix lock")
    given = moment.count("radix lock") - taken
    counts = {
        "added": moment.count("radix add"),
        "split": moment.count("radix split"),
        "evicted": moment.count("radix evict"),
    }
    paths = {"locked": taken, "unlocked": given}  # from where a lock ends up to the root
    wanted = [word(m, "rid") for m in named(trace, "page alloc") if m.time == moment.time]
    for_whom = f" for {' and '.join(dict.fromkeys(wanted))}" * bool(wanted)
    counts["evicted" + for_whom] = counts.pop("evicted")
    who = [f"{rid} {', '.join(did)}" for rid, did in whose.items()]
    return "; ".join(filter(None, [*who, counted("node", counts), counted("path", paths)]))


def counted(noun: str, counts: dict[str, int]) -> str:
    """``2 nodes added, 1 split``; empty: nothing was done to any."""
    words = [(count, what) for what, count in counts.items() if count]
    first = [f"{many(count, noun)} {what}" for count, what in words[:1]]
    return ", ".join([*first, *(f"{count} {what}" for count, what in words[1:])])


def title(at: int, moment: Moment) -> str:
    """A picture's number and time."""
    return f"{at} at {ms(moment.time)} ms"


# -- What happened to the radix tree, read for every form in which it is shown ---------------------

TITLE = "radix_cache: the tree of cached prefixes"
MOST_MOMENTS, PICTURES = 200, 4
NAMES = {
    "protected": "protected: a running request has locked it",
    "evictable": "evictable",
    "evicted": "evicted just now",
}


@dataclass(frozen=True)
class Picture:
    """The tree at one moment; of ``before`` and ``after`` only the latter has what was evicted."""

    moment: Moment
    story: str
    before: Tree
    after: Tree
    lockers_before: dict[int, list[str]]  # node id -> requests that have it locked
    lockers: dict[int, list[str]]

    @property
    def changed(self) -> set[int]:
        """Nodes that were added, put in by a split, cut by one, or evicted."""
        ids = set()
        for mark in self.moment.marks:
            if mark.name != "radix lock":
                ids.add(number(mark, "node"))
            if mark.name == "radix split":
                ids.add(number(mark, "child"))
        return ids


def changes(trace: Trace) -> tuple[Trace, list[Moment], str]:
    """Every change of the tree, of many the first; the trace up to there; and which they are.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    trace = replace(trace, marks=tuple(m for m in trace.marks if m.attrs.get("side") != "prefill"))
    moments = moments_of(trace)
    if any(mark.name == "block add" for mark in trace.marks):
        raise NothingToShow(
            "there is no tree: by the rules of this run pages are found by the hash of their "
            "tokens (prefix_cache blocks); the view page_allocator shows them."
        )
    if not any(moment.count("radix add") for moment in moments):
        raise NothingToShow("the trace has no radix add mark: nothing ever entered a prefix cache.")
    if len(moments) <= MOST_MOMENTS:
        return trace, moments, many(len(moments), "change")
    shown = f"the first {MOST_MOMENTS} of {len(moments)} changes"
    moments = moments[:MOST_MOMENTS]
    end = moments[-1].time
    marks = tuple(mark for mark in trace.marks if mark.time <= end)
    return replace(trace, marks=marks), moments, shown


def pictures(trace: Trace, moments: list[Moment]) -> list[Picture]:
    """The moments worth a picture, each before and after."""
    panel = tree_panel(trace)
    found = []
    for moment in choose(moments):
        before = tree_at(trace, moment.time - 1)
        before.bury()
        locks = [
            lockers({place: (stay.parent, stay.holders) for place, stay in panel.at(time).items()})
            for time in (moment.time - 1, moment.time)
        ]
        after = tree_at(trace, moment.time)
        found.append(Picture(moment, story(trace, moment), before, after, *locks))
    return found


def choose(moments: list[Moment]) -> list[Moment]:
    """The moments worth a picture, in order of time."""
    split, evict = (first(moments, name) for name in ("radix split", "radix evict"))
    branched = first(moments, "radix add", since=split.time + 1) if split else None
    fullest = max(moments, key=lambda moment: moment.protected)
    worth = [split, evict, moments[-1], branched, fullest, first(moments, "radix add")]
    found = list({moment.time: moment for moment in worth if moment}.values())[:PICTURES]
    return sorted(found, key=lambda moment: moment.time)


def first(moments: list[Moment], name: str, since: int = 0) -> Moment | None:
    """The first moment at which something of that name happened."""
    return next((m for m in moments if m.time >= since and m.count(name)), None)


def lockers(nodes: dict[str, tuple[str, Iterable[str]]]) -> dict[int, list[str]]:
    """Who has each node locked: a lock holds the whole path from where it ends to the root.

    ``nodes`` has the place above each node, and the requests whose lock ends there.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for place, (_, holders) in nodes.items():
        above = place
        while above in nodes:
            found[above].update(holders)
            above = nodes[above][0]
    return {int(place.split()[1]): sorted(rids) for place, rids in found.items() if rids}


def order(tree: Tree) -> list[tuple[int, Node]]:
    """(level from 0, node), parents before children, one branch after the other, oldest first."""
    below: dict[int, list[Node]] = defaultdict(list)
    for node_id in sorted(tree.nodes):
        below[tree.nodes[node_id].parent].append(tree.nodes[node_id])
    found, waiting = [], [(0, node) for node in reversed(below[ROOT])]
    while waiting:
        level, node = waiting.pop()
        found.append((level, node))
        waiting += [(level + 1, child) for child in reversed(below[node.id])]
    return found


def branches(nodes: list[tuple[int, Node]]) -> list[str]:
    """The lines of a list in the order of ``order``: what leads from the root to each node."""
    found: list[str] = []
    goes_on: set[int] = set()  # levels on which a node further down hangs on the same parent
    for level, _ in reversed(nodes):
        lead = "".join("│  " if above in goes_on else "   " for above in range(level))
        found.append(lead + ("├─ " if level in goes_on else "└─ "))
        goes_on = {above for above in goes_on if above < level} | {level}
    return found[::-1]


# -- One picture of the radix tree: the root at the left, a box a node, a row a leaf ---------------

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
    page.add(svg_text(left + (ROOT_WIDTH - GAP / 2) / 2, middle + 4, "root", "small", "middle"))
    for level, node in order(part):
        x, y = left + ROOT_WIDTH + level * pitch, top + rows[node.id] * ROW
        above = top + rows[node.parent] * ROW + BOX / 2
        page.add(_link(x - (GAP if level else GAP / 2), above, x, y + BOX / 2))
        _draw_node(page, node, panel, x, y, pitch - GAP)
    if more := len(panel.tree.nodes) - len(part.nodes):
        below = top + len(_leaves(part)) * ROW + 8
        page.add(svg_text(left, below, f"… and {more} more nodes", "small faint"))


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
    page.add(svg_text(x + width / 2, y + 15, tokens, f"{ink} bold", "middle"))
    counted = many(node.lock_ref, "lock") if node.lock_ref else node.state
    options = (f"{pages}, {locks}", f"{pages}, {counted}", pages)
    words = next((words for words in options if len(words) <= most), f"{node.pages} p")
    page.add(svg_text(x + width / 2, y + 29, words, ink, "middle"))


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


# -- The radix tree as text for a terminal, and as PlantUML ----------------------------------------

MOST_NODES, MOST_ROWS, DEEP = 24, 40, 36  # in characters: how far a node is indented
STYLE = """\
<style>
componentDiagram {
  FontSize 12
  LineColor #59636E
  rectangle { BackgroundColor #FFFFFF }
  package { BackgroundColor #F3F5F7
    FontSize 11 }
}
legend { BackgroundColor #FFFFFF
  LineColor #9DA7B1 }
</style>
skinparam nodesep 10
skinparam ranksep 22"""


def text(trace: Trace) -> str:
    """Pages over time, every change, and the tree before and after some of them.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    part, moments, shown = changes(trace)
    page = TextPage(TITLE, about_run(trace, shown), margin=16)
    end = max(part.end, moments[-1].time)
    page.heading("Pages in the tree, over time")
    page.curve("protected", [(moment.time, moment.protected) for moment in moments], end)
    page.curve("evictable", [(moment.time, moment.evictable) for moment in moments], end)
    page.lanes([], end)
    for at, picture in enumerate(pictures(part, moments), 1):
        page.heading(title(at, picture.moment), picture.story)
        _write_tree(page, "before", picture.before, picture.lockers_before, set())
        _write_tree(page, "after", picture.after, picture.lockers, picture.changed)
    page.legend(NAMES)
    page.heading("Every change" if len(moments) <= MOST_ROWS else
                 f"The first {MOST_ROWS} of {len(moments)} changes")  # fmt: skip
    gone = evictions(part)
    page.table(
        ("ms", "protected", "evictable", "evicted", "what happened"),
        [
            (ms(moment.time), moment.protected, moment.evictable, gone.get(moment.time, 0),
             story(part, moment))
            for moment in moments[:MOST_ROWS]
        ],
    )  # fmt: skip
    return page.finish()


def _write_tree(
    page: TextPage, name: str, tree: Tree, lockers: dict[int, list[str]], changed: set[int]
) -> None:
    """An indented list: sign, tokens, pages, and by whom it is locked."""
    page.lines.append(f"  {name:<7}root")
    nodes = order(tree)
    for (_, node), branch in [*zip(nodes, branches(nodes), strict=True)][:MOST_NODES]:
        lead = branch if len(branch) <= DEEP else f"…{branch[1 - DEEP :]}"
        words = f"{lead}{GLYPHS[node.state]} {node.tokens}"
        state = held(node, lockers.get(node.id, []))
        note = "  *" if node.id in changed else ""
        pages = f"{many(node.pages, 'page'):>9}"
        page.lines.append(f"{'':9}{short(words, 50):<50} {pages}, {short(state, 26)}{note}")
    if len(nodes) > MOST_NODES:
        page.lines.append(f"         … and {len(nodes) - MOST_NODES} more nodes")


def puml(trace: Trace) -> str:
    """A frame for each moment, before and after, with the tree in it.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    part, moments, _ = changes(trace)
    lines = ["@startuml", STYLE, f"title {TITLE}"]
    frames = []
    for at, picture in enumerate(pictures(part, moments), 1):
        when = f"{ms(picture.moment.time)} ms"
        before, after = f"{at}: before {when}", f"{at}: after {when}; {short(picture.story, 90)}"
        frames.append((before, f"b{at}_", picture.before, picture.lockers_before))
        frames.append((after, f"a{at}_", picture.after, picture.lockers))
    for words, name, tree, lockers in frames:
        lines += [f'package "{creole(words)}" {{', *_boxes(name, tree, lockers), "}"]
    deepest = [f"{name}{_deepest(tree)}" for _, name, tree, _ in frames]
    lines += [  # the next moment below this one
        f"{deepest[at]} -[hidden]- {frames[at + 2][1]}0" for at in range(len(frames) - 2)
    ]
    return "\n".join([*lines, *legend(NAMES), "@enduml", ""])


def _boxes(name: str, tree: Tree, lockers: dict[int, list[str]]) -> list[str]:
    """The root and its nodes, each hanging on the one above it."""
    nodes = [node for _, node in order(tree)][:MOST_NODES]
    lines = [f'rectangle "root" as {name}0']
    for node in nodes:
        about = f"{many(node.pages, 'page')}, {held(node, lockers.get(node.id, []))}"
        words = (f"**{creole(node.tokens)}**", creole(about))
        inside = "\\n".join(ink(node.state, line) for line in words)
        lines.append(f'rectangle "{inside}" as {name}{node.id} {fill(node.state)}')
    if len(nodes) < len(tree.nodes):
        lines.append(f'rectangle "and {len(tree.nodes) - len(nodes)} more nodes" as {name}more')
    return lines + [f"{name}{node.parent} -- {name}{node.id}" for node in nodes]


def _deepest(tree: Tree) -> int:
    """A node on the lowest level that is drawn; the root where there is no other."""
    nodes = order(tree)[:MOST_NODES]
    return max(nodes, key=lambda item: item[0])[1].id if nodes else ROOT


__all__ = ["puml", "text", "view"]
HEIGHT, ARROW, NARROW = 80, 28, 3  # pixels: the chart, between two trees; levels of a narrow tree
LEGEND = {**NAMES, "evict": "so many pages are evicted"}


def view(trace: Trace) -> str:
    """Pages over time; the tree before and after a split, a branch, an eviction; and at the end.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    trace, moments, shown = changes(trace)
    page = Page(TITLE, about_run(trace, shown))
    chosen = pictures(trace, moments)
    _draw_pages(page, trace, moments, chosen)
    for at, picture in enumerate(chosen, 1):
        _draw_picture(page, at, picture, is_last=picture.moment is moments[-1])
    page.legend(LEGEND)
    page.notes("A bold border: added, cut in two by a split, or evicted just now. A lock holds the "
               "whole path to the root.")  # fmt: skip
    return page.finish()


def _draw_pages(page: Page, trace: Trace, moments: list[Moment], chosen: list[Picture]) -> None:
    """Protected and evictable pages over time, evictions, and the numbers of the pictures below."""
    protected = [(moment.time, moment.protected) for moment in moments]
    both = stacked(protected, [(moment.time, moment.evictable) for moment in moments])
    page.heading("Pages in the tree", "the numbers: the moments shown below")
    x = TimeAxis(max(trace.end, moments[-1].time))
    y = ValueAxis(max(1, most(both)), page.top + 46, page.top + 46 + HEIGHT)
    page.add(*y.draw("pages"), *x.grid(y.top, y.bottom))
    page.add(step_area(both, x, y, "evictable", "evictable pages, on top of the protected ones"))
    page.add(step_area(protected, x, y, "protected", "protected pages"))
    beside = 0.0
    for place, picture in enumerate(chosen, 1):
        at = x.x(picture.moment.time)
        beside = max(at, beside + 11)
        page.add(line("flag", at, y.top - 22, at, y.bottom))
        page.add(write(beside, y.top - 26, str(place), "warn", "middle"))
    gone = sorted(evictions(trace).items())
    beside_signs = labels([(x.x(time), f"-{pages}") for time, pages in gone])
    for (time, pages), words in zip(gone, beside_signs, strict=True):
        at, about = x.x(time), f"{many(pages, 'page')} evicted"
        page.add(path("evict", f"M{at:.1f} {y.top - 8:.1f}{SIGNS['evict']}", about, evicted=pages))
        page.add(write(at + 8, y.top - 4, words, "small warn") if words else "")
    page.add(*x.draw(y.bottom + 2))
    page.top = y.bottom + 54


def _draw_picture(page: Page, at: int, picture: Picture, is_last: bool) -> None:
    """Before and after, beside each other where they are narrow; of the last change only after."""
    page.add(write(20, page.top, title(at, picture.moment) + ", the end" * is_last, "run"))
    story = short(picture.story, int((EDGE - 20) / char_width(11)))
    page.add(write(20, page.top + 16, story, "small faint"))
    page.top += 26
    before = TreePanel(f"{at} before", picture.before, lockers=picture.lockers_before)
    after = TreePanel(f"{at} after", picture.after, picture.changed, picture.lockers)
    both = [after] if is_last else [before, after]
    sizes = [panel_size(panel.tree) for panel in both]
    is_narrow = len(both) == 2 and max(width for width, _ in sizes) <= 44 + NARROW * 168
    room = (EDGE - 20 - ARROW) / 2 if is_narrow else EDGE - 20
    for place, (panel, size) in enumerate(zip(both, sizes, strict=True)):
        left = 20 + place * (room + ARROW) * is_narrow
        page.add(write(left, page.top + 10, panel.name.split()[1], "small bold"))
        draw_tree(page, panel, left, page.top + 16, room)
        if not is_narrow:
            page.top += size[1] + 24
    if is_narrow:
        middle = page.top + 16 + sizes[0][1] / 2 - 4
        page.add(write(20 + room + ARROW / 2 - 8, middle, "→", "title faint", "middle"))
        page.top += max(height for _, height in sizes) + 24
    page.top += 16
