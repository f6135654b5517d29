"""What happens to the radix tree, in words."""

from __future__ import annotations

from ...trace import Trace
from ..units import ms
from .marks import named, number, word
from .radix_tree import Moment, Node
from .wording import many

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
