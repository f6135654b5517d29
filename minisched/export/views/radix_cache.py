"""The prefix cache's tree, before and after what changed it: shared, locked, and given up."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ...trace import Trace
from ..scene import (
    Curve,
    LaneItem,
    NodeTree,
    Part,
    Scene,
    Series,
    TextTable,
    TreeBox,
    about_run,
)
from ..state import Panel
from ..state.tree import ROOT, Moment, Node, Tree, moments_of, tree_at
from ..state.tree import tree as tree_panel
from ..units import ms
from .marks import NothingToShow, many, named, number, short, word
from .page_allocator import evictions

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


# -- What happened to the radix tree, read for every form in which it is shown ---------------------

MOST_MOMENTS, PICTURES, MOST_NODES, MOST_ROWS = 200, 4, 24, 40
LEGEND = {
    "protected": "protected: a running request has locked it",
    "evictable": "evictable",
    "evicted": "evicted just now",
    "changed": "added, cut in two by a split, or evicted just now",
    "flag": "a moment that is shown below",
    "evict": "so many pages are evicted",
}
HEADS = ("ms", "protected", "evictable", "evicted", "what happened")


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


def choose(moments: list[Moment]) -> list[Moment]:
    """The moments worth a picture, in order of time."""

    def first(name: str, since: int = 0) -> Moment | None:
        return next((m for m in moments if m.time >= since and m.count(name)), None)

    split, evict = first("radix split"), first("radix evict")
    branched = first("radix add", since=split.time + 1) if split else None
    fullest = max(moments, key=lambda moment: moment.protected)
    worth = [split, evict, moments[-1], branched, fullest, first("radix add")]
    found = list({moment.time: moment for moment in worth if moment}.values())[:PICTURES]
    return sorted(found, key=lambda moment: moment.time)


# -- Pages over time, and the tree before and after the changes worth a picture --------------------


def scene(trace: Trace) -> Scene:
    """Pages over time; the tree around a split, a branch, an eviction; and at the end.

    Raises:
        NothingToShow: nothing ever entered a tree.
    """
    part, moments, shown = changes(trace)
    chosen, gone, end = choose(moments), evictions(part), max(part.end, moments[-1].time)
    flags = [LaneItem("flag", moment.time, moment.time, str(at))
             for at, moment in enumerate(chosen, 1)]  # fmt: skip
    flags += [LaneItem("evict", time, time, f"-{pages}", about=f"{many(pages, 'page')} evicted",
                       data={"evicted": pages}) for time, pages in gone.items()]  # fmt: skip
    series = [
        Series(kind, kind, [(moment.time, getattr(moment, kind)) for moment in moments])
        for kind in ("protected", "evictable")
    ]
    flags.sort(key=lambda flag: flag.start)
    parts = [Part("Pages in the tree", "the numbers: the moments shown below",
                  [Curve(series, end, "pages", flags=flags)])]  # fmt: skip
    panel = tree_panel(part)
    for at, moment in enumerate(chosen, 1):
        trees = [tree_of(part, panel, moment, at, is_after) for is_after in (False, True)]
        parts.append(Part(f"{at} at {ms(moment.time)} ms", short(story(part, moment), 110), trees))
    lines = [
        (ms(moment.time), moment.protected, moment.evictable, gone.get(moment.time, ""),
         short(story(part, moment), 60))
        for moment in moments[:MOST_ROWS]
    ]  # fmt: skip
    cut = f"the first {MOST_ROWS} of {len(moments)}" * (len(moments) > MOST_ROWS)
    parts.append(Part("Every change", cut, [TextTable(HEADS, lines)]))
    most = max(moment.protected for moment in moments)
    title = (
        f"radix_cache: at most {many(most, 'page')} locked, "
        f"{many(sum(gone.values()), 'page')} evicted"
    )
    about = about_run(trace, shown)
    return Scene(title, about, parts, LEGEND, ["A lock holds the whole path to the root."])


def tree_of(trace: Trace, panel: Panel, moment: Moment, at: int, is_after: bool) -> NodeTree:
    """The tree before or after a moment; only after it what was evicted just then. Of many nodes
    the first; a lock holds the whole path from where it ends to the root.
    """
    name, time = ("after", moment.time) if is_after else ("before", moment.time - 1)
    tree, lockers, changed = tree_at(trace, time), defaultdict[int, set[str]](set), set[int]()
    if is_after:
        changed = {number(mark, key) for mark in moment.marks if mark.name != "radix lock"
                   for key in ("node", "child") if key in mark.attrs}  # fmt: skip
    else:
        tree.bury()
    for place, stay in panel.at(time).items():
        if (node_id := int(place.split()[1])) in tree.nodes:
            for node in tree.path(node_id):
                lockers[node.id].update(stay.holders)
    nodes = [
        TreeBox(
            node.id, node.parent, node.state,
            (node.tokens, f"{many(node.pages, 'page')}, {held(node, sorted(lockers[node.id]))}"),
            f"node {node.id}: tokens {node.tokens}", node.id in changed,
            {"parent": node.parent, "pages": node.pages, "lock": node.lock_ref,
             "state": node.state, "panel": f"{at} {name}"},
        )
        for node in in_order(tree)
    ]  # fmt: skip
    if len(nodes) > MOST_NODES:
        name += f", and {many(len(nodes) - MOST_NODES, 'more node')}"
    return NodeTree(name, nodes[:MOST_NODES])


def in_order(tree: Tree) -> list[Node]:
    """Parents before children, one branch after the other, oldest first."""
    below: dict[int, list[Node]] = defaultdict(list)
    for node_id in sorted(tree.nodes):
        below[tree.nodes[node_id].parent].append(tree.nodes[node_id])
    found, waiting = list[Node](), below[ROOT][::-1]
    while waiting:
        found.append(waiting.pop())
        waiting += below[found[-1].id][::-1]
    return found
