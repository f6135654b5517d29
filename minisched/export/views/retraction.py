"""Retraction: memory runs out, somebody gives theirs back, and pays by computing it again."""

from __future__ import annotations

from itertools import pairwise

from ...trace import Mark, Trace
from ..scene import Curve, LaneRow, Lanes, Part, Scene, Series, about_run
from ..state import memory
from ..units import counted, ms
from .marks import NothingToShow, many, named, number, short, word
from .steps import WORK, StepWork, opening, requests_in, retraction_flags, steps_of, work_of

MOST_STEPS, MOST_LANES, MOST_BILLS = 150, 16, 12
LEGEND = {
    "stored": "KV slots held by requests",
    "evictable": "KV slots cached, on top",
    **WORK,
    "flag-head": "retraction",
}


def scene(trace: Trace) -> Scene:
    """Memory and the new token ratio over time, what was computed for whom, and who paid what.

    Raises:
        NothingToShow: no step ran, or nobody was retracted.
    """
    part, shown = opening(trace, MOST_STEPS)
    marks, steps = retractions(part), steps_of(part)
    rids = lanes_of(requests_in(steps), marks)
    everybody = [word(mark, "rid") for mark in marks]
    held = [Series(f"KV slots {name}", kind, values) for name, kind, counter_name in
            (("held", "stored", "kv used"), ("cached", "evictable", "kv cached"))
            if (values := counter(part, counter_name))]  # fmt: skip
    flags = retraction_flags(part, everybody, "")
    parts = [Part("Memory", "", [Curve(held, part.end, "KV slots", flags=flags)])] if held else []
    if ratio := counter(part, "new token ratio"):
        line = [Series("new token ratio", "line", ratio)]
        curve = Curve(line, part.end, "ratio", scale=counted("new token ratio").scale)
        parts.append(Part("New token ratio", course(ratio), [curve]))
    rows = [LaneRow(short(rid, 12), work_of(steps, rid)) for rid in rids]
    lanes = Lanes(rows, part.end, flags=retraction_flags(part, rids))
    parts.append(Part("Requests", "a box is one step on the device", [lanes]))
    again = sum(step.tokens("again") for step in steps)
    gives = f"memory is taken back {many(len(marks), 'time')}"
    title = f"retraction: {gives}, and {many(again, 'token')}"
    return Scene(f"{title} computed again", about_run(trace, shown), parts, LEGEND,
                 bills(part, marks, steps, MOST_BILLS))  # fmt: skip


def counter(trace: Trace, name: str) -> list[tuple[int, int]]:
    """A counter's values; of several at one moment the last."""
    return list({item.time: item.value for item in trace.counters if item.name == name}.items())


def retractions(trace: Trace) -> list[Mark]:
    """Everybody who was retracted.

    Raises:
        NothingToShow: nobody was.
    """
    if not (marks := named(trace, "retraction")):
        raise NothingToShow("the trace has no retraction mark: nobody had to give up memory.")
    return marks


def lanes_of(rids: list[str], marks: list[Mark]) -> list[str]:
    """Those who get a lane: whoever was retracted, and others for as long as there is room."""
    paid = {word(mark, "rid") for mark in marks}
    kept = sorted(rids, key=lambda rid: rid not in paid)[:MOST_LANES]
    return [rid for rid in rids if rid in kept]


def bills(trace: Trace, marks: list[Mark], steps: list[StepWork], most: int) -> list[str]:
    """What each retraction cost: a sentence.

    In KV slots, as the axis of memory is; in pages where the trace does not say how long one is.
    """
    pool, found = memory.pool(trace), []
    unit, size = ("KV slot", pool.page_size) if pool else ("page", 1)
    for mark in marks[:most]:
        rid = word(mark, "rid")
        words = (
            f"{rid} at {ms(mark.time)} ms ({word(mark, 'reason')}): gives back "
            f"{many(number(mark, 'pages') * size, unit)}, keeps "
            f"{many(number(mark, 'outputs'), 'token')} that its client has"
        )
        again = _again(rid, mark.time, steps)
        found.append(words + (f"; computes {many(again, 'token')} again." if again else "."))
    if len(marks) > most:
        found.append(f"… and {len(marks) - most} more.")
    return found


def course(ratio: list[tuple[int, int]]) -> str:
    """What the new token ratio does here, in words: read off its own values."""
    values, scale = [value for _, value in ratio], counted("new token ratio").scale
    falls = sum(after < before for before, after in pairwise(values))
    rises = sum(after > before for before, after in pairwise(values))
    if not (falls or rises):
        return f"it stays at {values[0] / scale:g} here"
    words = [f"{what} {many(count, 'time')}" for what, count in
             (("falls", falls), ("rises", rises)) if count]  # fmt: skip
    low, high = min(values) / scale, max(values) / scale
    return f"here it {' and '.join(words)}, between {low:g} and {high:g}"


def _again(rid: str, since: int, steps: list[StepWork]) -> int:
    """Prompt tokens that a request computes after its retraction, before it decodes again."""
    tokens = 0
    for step in steps:
        for part in step.parts if step.start > since else ():
            if part.rid == rid and part.kind == "again":
                tokens += part.tokens
            elif part.rid == rid and part.kind == "decode" and tokens:
                return tokens
    return tokens
