"""The grammar over time: the tokens allowed by each mask, the tokens sampled, and the waits."""

from __future__ import annotations

from ...checks.causes import idle_times, waits
from ...checks.history import many
from ...trace import Mark, Trace
from ...trace.events import is_forward
from ...trace.sides import shown_side, side_words
from ..layout import make_view
from ..runs import lanes_of
from ..scene import Data, LaneItem, LaneRow, Lanes, Part, Scene, about_run
from ..units import ms
from .marks import first_of, lacking, named, needed, number, numbers, short, word
from .steps import opening

MOST_STEPS, MOST_REQUESTS = 6, 6
LEGEND = {
    "promised": "its mask is built: it may be sampled",
    "stored": "sampled; the host does not know the token yet",
    "end": "terminated: nothing can follow",
    "mask": "mask",
    "launch": "launch",
    "process": "process: the grammar accepts the token",
    "forward": "forward",
    "sample": "sample",
    "waited": "the device waits for the inputs of a step",
    "flag": "waits: its mask needs a token in flight",
}
NOTE = "26 → t: 26 tokens were allowed, t was sampled; ␣ is a space, #7 no character"


def scene(trace: Trace) -> Scene:
    """Draw host and device, and a lane for each request with a grammar."""
    part, shown = opening(trace, MOST_STEPS)
    part = shown_side(part)
    rules = {word(mark, "rid"): word(mark, "rule")
             for mark in needed(part, "grammar", "no request had a grammar")}  # fmt: skip
    sampled = {item.step: item.end for item in part.slices
               if item.name == "sample" and is_forward(item.lane)}  # fmt: skip
    taken = {(number(mark, "step"), word(mark, "rid")): mark
             for mark in named(part, "grammar accept")}  # fmt: skip
    lanes: dict[str, list[LaneItem]] = {rid: [] for rid in rules}
    for mark in named(part, "grammar mask"):
        step, rid = number(mark, "step"), word(mark, "rid")
        if rid not in lanes:
            raise lacking(mark, f"a grammar of {rid}")
        end = max(mark.time, sampled.get(step, part.end))
        lanes[rid] += items_of(mark, end, taken.get((step, rid)), is_text=trace.model == "hash")
    lost = ms(sum(item.duration for item in idle_times(part) if item.cause == "grammar"))
    waited = sum(mark.attrs["reason"] == "grammar" for mark in waits(part))
    requests = [LaneRow(short(rid, 12), items) for rid, items in lanes.items()][:MOST_REQUESTS]
    both = []
    for row in lanes_of(make_view(part), part.end).rows:
        items = [item for item in row.spans if item.kind in LEGEND]
        if items:
            both.append(LaneRow(row.name.lower(), items))
    return Scene(
        f"A mask needs the token before: {many(waited, 'step')} waited, and the device idled "
        f"{lost} ms",
        about_run(trace, shown, first_of(MOST_REQUESTS, len(lanes), "request"), side_words(trace)),
        [Part("Requests with a grammar", NOTE, [Lanes(requests, part.end)]),
         Part("Host and device", "numbers: steps", [Lanes(both, part.end)])],
        LEGEND,
        [f"{short(rid, 12)} follows {short(printable(rule), 100)}"
         for rid, rule in [*rules.items()][:MOST_REQUESTS]],
    )  # fmt: skip


def items_of(mark: Mark, sampled: int, taken: Mark | None, is_text: bool) -> list[LaneItem]:
    """Return one step's token: the number allowed, the one sampled, and whether it was the last.

    If the token is dropped, or the trace ends, the grammar has accepted none.
    """
    data: Data = {"rid": word(mark, "rid"), "step": number(mark, "step")}
    until = max(sampled, taken.time) if taken else sampled
    allows = words = " ".join(map(str, numbers(mark, "allowed")))
    if taken and (came := numbers(taken, "tokens")):
        words += " → " + " ".join(character(one) if is_text else f"#{one}" for one in came)
    label, none = (words, words.replace(" ", "")), ("", "")
    is_early = sampled - mark.time >= until - sampled  # the words stand on the side with more room
    items = [LaneItem("promised", mark.time, sampled, *(label if is_early else none),
                      data={**data, "allowed": allows})]  # fmt: skip
    if until > sampled:
        items.append(LaneItem("stored", sampled, until, *(none if is_early else label), data=data))
    if taken and number(taken, "terminated"):
        items.append(LaneItem("end", until, until, data=data))
    return items


def printable(rule: str) -> str:
    """Return a rule in one line, without characters that a picture or a terminal can't show."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in rule
    )


def character(token: int) -> str:
    """Return a byte as a character, if it can be printed, otherwise its id."""
    return "␣" if token == 32 else chr(token) if 32 < token < 127 else f"#{token}"
