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
    whose = dict.fromkeys(
        f"{word(mark, 'rid')} {WORDS[mark.name]}"
        for mark in named(trace, *WORDS)
        if mark.time == moment.time
    )
    taken = sum(number(mark, "delta") > 0 for mark in moment.marks if mark.name == "radix lock")
    given = moment.count("radix lock") - taken
    counts = {
        "added": moment.count("radix add"),
        "split": moment.count("radix split"),
        "evicted": moment.count("radix evict"),
        "locked": taken,
        "unlocked": given,
    }
    wanted = [word(m, "rid") for m in named(trace, "page alloc") if m.time == moment.time]
    for_whom = f" for {' and '.join(dict.fromkeys(wanted))}" * bool(wanted)
    words = [
        f"{count} {what}{for_whom * (what == 'evicted')}" for what, count in counts.items() if count
    ]
    return "; ".join([*whose, "nodes: " + ", ".join(words)])


def title(at: int, moment: Moment) -> str:
    """A picture's number and time."""
    return f"{at} at {ms(moment.time)} ms"
