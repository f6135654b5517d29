"""The prefix cache's tree, just after a change: shared, locked and evicted nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from ...checks.history import many
from ...trace import Mark, Trace
from ...trace.sides import shown_side, side_words
from ..scene import Curve, Data, LaneItem, NodeTree, Part, Scene, Series, TreeBox, about_run
from ..state import Stay, count, panels_of
from ..units import ms
from .marks import NothingToShow, first_of, named, needed, number, short, word
from .page_allocator import eviction_flags

PICTURES, MOST_NODES = 3, 24
LEGEND = {
    "protected": "protected: a running request has locked it",
    "evictable": "evictable",
    "evicted": "evicted just now",
    "changed": "added, cut in two by a split, or evicted just now",
    "evict": "this many pages are evicted",
}
CHANGES = {"radix add": "added", "radix split": "split", "radix evict": "evicted", "radix lock": ""}
DID = {"insert": "inserted", "admit": "admitted", "retraction": "retracted", "finish": "ended"}


def scene(trace: Trace) -> Scene:
    """Draw pages over time, and the tree after a split, and after the first evictions."""
    own = shown_side(trace)
    if any(mark.name == "block add" for mark in own.marks):
        raise NothingToShow(
            "there is no tree: by the rules of this run pages are found by the hash of their "
            "tokens (prefix_cache blocks); the view page_allocator shows them."
        )
    changes, tree = changes_of(own), panels_of(own)["tree"]
    chosen, end = choose(changes, tree.stays), max(own.end, *changes)
    flags = {flag.start: flag for flag in eviction_flags(own)}
    for at, time in enumerate(chosen, 1):
        said = f"{at}: {flags[time].label}" if time in flags else str(at)
        flags[time] = LaneItem("flag", time, time, said)
    series = [Series(kind, kind, count(tree.stays, kind)) for kind in ("protected", "evictable")]
    curve = Curve(series, end, "pages", flags=[flags[time] for time in sorted(flags)])
    parts = [Part("Pages in the tree", "the numbers: the moments shown below", [curve])]
    for at, time in enumerate(chosen, 1):
        gone = {f"node {m.attrs['node']}" for m in changes[time] if m.name == "radix evict"}
        before = tree.at(time - 1).items()
        now = tree.at(time) | {place: stay for place, stay in before if place in gone}
        touched = {f"node {mark.attrs[key]}" for mark in changes[time] for key in ("node", "child")
                   if mark.name != "radix lock" and key in mark.attrs}  # fmt: skip
        lockers = lockers_of(now)
        nodes = [box_of(now[place], "evicted" if place in gone else now[place].kind,
                        lockers[place], place in touched, at)
                 for place in tree.places if place in now]  # fmt: skip
        cut = first_of(MOST_NODES, len(nodes), "node")
        said = "; ".join(filter(None, [story(own, changes[time], time), cut]))
        parts.append(Part(f"After {at}, at {ms(time)} ms", said, [NodeTree(nodes[:MOST_NODES])]))
    pages = sum(number(mark, "pages") for mark in named(own, "radix evict"))
    return Scene(
        f"The radix cache evicts {many(pages, 'page')}, and no locked one",
        about_run(trace, many(len(changes), "change"), side_words(trace)),
        parts,
        LEGEND,
        ["A node's tokens are bold. A lock holds the whole path to the root."],
    )


def evictions_of(scene: Scene) -> Scene:
    """Return the trees of a scene with evicted nodes, without the curve: the form for a slide."""
    parts = [
        replace(part, heading=f"At {part.heading.rpartition(' at ')[2]}")
        for part in scene.parts
        for show in part.shows
        if isinstance(show, NodeTree) and any(node.kind == "evicted" for node in show.nodes)
    ]
    return replace(scene, parts=parts, legend={"changed": "changed just now"})


def changes_of(trace: Trace) -> dict[int, list[Mark]]:
    """Return the changes of the tree, by time."""
    needed(trace, "radix add", "nothing ever entered a prefix cache")
    found: dict[int, list[Mark]] = defaultdict(list)
    for mark in named(trace, *CHANGES):
        found[mark.time].append(mark)
    return found


def choose(changes: dict[int, list[Mark]], stays: tuple[Stay, ...]) -> list[int]:
    """Return the times worth a picture, in order.

    They are a split, two evictions, a branch, the end, the fullest tree, and the beginning.
    """

    def first(name: str, since: int = 0) -> list[int]:
        """Return the first time of a change of that name, from ``since`` on."""
        found = (time for time, marks in changes.items()
                 if time >= since and any(mark.name == name for mark in marks))  # fmt: skip
        return [*found][:1]

    split = first("radix split")
    branched = first("radix add", since=split[0] + 1) if split else []
    fullest = max(count(stays, "protected"), key=lambda at: at[1], default=(max(changes), 0))[0]
    evicted = first("radix evict")
    again = first("radix evict", since=evicted[0] + 1) if evicted else []
    worth = [*split, *evicted, *again, *branched, max(changes), fullest, *first("radix add")]
    return sorted([time for time in dict.fromkeys(worth) if time in changes][:PICTURES])


def lockers_of(now: dict[str, Stay]) -> dict[str, set[str]]:
    """Return the requests that hold each node: a lock holds the path from its end to the root."""
    lockers: dict[str, set[str]] = defaultdict(set)
    for stay in now.values():
        at: Stay | None = stay
        while stay.holders and at:
            lockers[at.place] |= {*stay.holders}
            at = now.get(at.parent)
    return lockers


def box_of(stay: Stay, kind: str, lockers: set[str], is_touched: bool, tree: int) -> TreeBox:
    """Return a node with its first tokens, its pages, and the requests that hold it."""
    at, parent = (int(place.partition(" ")[2] or 0) for place in (stay.place, stay.parent))
    tokens, pages = stay.label.rpartition('" ')[2], many(stay.size, "page")
    holders = sorted(lockers) if kind == "protected" else []
    who = ", ".join(holders[:2]) + f" +{len(holders) - 2}" * (len(holders) > 2)
    line = f"{pages}, locked by {who}" if holders else f"{pages}, {kind}"
    whole = f"{pages}: {', '.join(holders)}" if holders else line
    data: Data = {"parent": parent, "pages": stay.size, "state": kind, "tree": tree}
    return TreeBox(at, parent, kind, (tokens, line), f"{tokens}; {whole}", is_touched, data)


def story(trace: Trace, marks: list[Mark], time: int) -> str:
    """Write the changes and their requests: ``b inserted; 1 node added, 1 split``."""
    who = dict.fromkeys(f"{word(mark, 'rid')} {DID[mark.name]}"
                        for mark in named(trace, *DID) if mark.time == time)  # fmt: skip
    counts = Counter(mark.name for mark in marks if CHANGES[mark.name])
    what = ", ".join(f"{many(count, 'node')} {CHANGES[name]}" for name, count in counts.items())
    wanted = dict.fromkeys(word(m, "rid") for m in named(trace, "page alloc") if m.time == time)
    if wanted and counts["radix evict"]:
        what += f" for {' and '.join(wanted)}"
    return short("; ".join(filter(None, [*who, what])), 110)
