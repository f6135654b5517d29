"""What happened to the radix tree, read for every form in which it is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...trace import Trace
from ..state.tree import tree as tree_panel
from .marks import NothingToShow, number
from .radix_tree import ROOT, Moment, Node, Tree, moments_of, tree_at
from .radix_words import story
from .wording import many

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
