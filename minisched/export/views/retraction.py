"""Retraction: without free memory a request loses its pages, and is recomputed later."""

from __future__ import annotations

from itertools import pairwise

from ...checks.history import many
from ...trace import Mark, Trace
from ..scene import Curve, Part, Scene, Series, about_run
from ..state import pool
from ..units import counted, ms
from .marks import needed, number, word
from .steps import WORK, StepWork, opening, requests_in, retraction_flags, steps_of, work_lanes

MOST_STEPS, MOST_LANES, MOST_BILLS = 150, 16, 12
LEGEND = {
    "admitted": "KV slots held by requests",
    "evictable": "KV slots cached, on top",
    **WORK,
    "flag-head": "retraction",
}


def scene(trace: Trace) -> Scene:
    """Draw memory and the new token ratio, the computed work, and the cost of each retraction."""
    part, shown = opening(trace, MOST_STEPS)
    marks = needed(part, "retraction", "no request was retracted")
    steps, paid = steps_of(part), {word(mark, "rid") for mark in marks}
    rids = requests_in(steps)
    kept = sorted(rids, key=lambda rid: rid not in paid)[:MOST_LANES]  # retracted requests first

    def values(name: str) -> list[tuple[int, int]]:
        """Return the values of a counter; the last of several at one time."""
        return list({it.time: it.value for it in part.counters if it.name == name}.items())

    held, parts = [Series("KV slots held", "admitted", values("kv used")),
                   Series("KV slots cached", "evictable", values("kv cached"))], []  # fmt: skip
    if held := [one for one in held if one.values]:
        curve = Curve(held, part.end, "KV slots", flags=retraction_flags(part))
        parts.append(Part("Memory", "", [curve]))
    if ratio := values("new token ratio"):
        line, scale = [Series("new token ratio", "line", ratio)], counted("new token ratio").scale
        low, high = (f"{of(value for _, value in ratio) / scale:g}" for of in (min, max))
        rises = sum(after > before for (_, before), (_, after) in pairwise(ratio))
        note = f"here it rises {many(rises, 'time')}, between {low} and {high}"
        note = f"it stays at {low} here" if low == high else note
        parts.append(Part("New token ratio", note, [Curve(line, part.end, "ratio", scale=scale)]))
    lanes = work_lanes(part, steps, [rid for rid in rids if rid in kept])
    parts.append(Part("Requests", "a box is one step on the device", [lanes]))
    again = sum(step.tokens("again") for step in steps)
    costs = "costs" if len(marks) == 1 else "cost"
    title = f"{many(len(marks), 'retraction')} {costs} {many(again, 'token')} computed once more"
    return Scene(title, about_run(trace, shown), parts,
                 LEGEND, [bill(part, mark, steps) for mark in marks[:MOST_BILLS]])  # fmt: skip


def bill(trace: Trace, mark: Mark, steps: list[StepWork]) -> str:
    """Write the cost of a retraction in a sentence.

    The unit is KV slots, as on the axis of memory; pages where the trace lacks the page size.
    """
    has, rid, again = pool(trace), word(mark, "rid"), 0
    unit, size = ("KV slot", has.page_size) if has else ("page", 1)
    for step in steps:
        for part in step.parts if step.start > mark.time else ():
            if part.rid == rid and part.kind == "again":
                again += part.tokens
        if again and any((part.rid, part.kind) == (rid, "decode") for part in step.parts):
            break
    paid = f"; computes {many(again, 'token')} again." if again else "."
    return (f"{rid} at {ms(mark.time)} ms ({word(mark, 'reason')}): releases "
            f"{many(number(mark, 'pages') * size, unit)}, keeps "
            f"{many(number(mark, 'outputs'), 'token')} that its client has{paid}")  # fmt: skip
