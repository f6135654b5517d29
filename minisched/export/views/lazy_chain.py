"""The chain of lazy arrays: when each step's tokens are a mere graph, and who is built on them."""

from __future__ import annotations

from ...trace import Trace
from ..scene import Data, LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, TextTable, about_run
from ..units import ms
from .marks import NothingToShow, many, named, number, numbers, short, word
from .steps import forwards_of, opening

MOST_STEPS = 18
WORDS = {"promised": "a graph, no number yet", "stored": "computed, and not read by the host"}
LEGEND = {
    "promised": "lazy: a graph, no number yet",
    "stored": "computed, and not read by the host",
    "read": "the next step is built on it",
    "flag-head": "built on tokens from the host: the chain begins anew",
}
HEADS = ("step", "mode", "built on", "places", "built, ms", "computed, ms", "read, ms", "wasted")


def scene(trace: Trace) -> Scene:
    """One lane a step's array of tokens, from its launch until the host reads it.

    Raises:
        NothingToShow: no step ran, no lazy chain was used, or a mark is not what it should be.
    """
    part, shown = opening(trace, MOST_STEPS)
    ran = {item.step: item for item in forwards_of(part)}
    marks = {step: mark for mark in named(part, "lazy tokens")
             if (step := number(mark, "step")) in ran}  # fmt: skip
    if not marks:
        raise NothingToShow("the trace has no lazy tokens mark: no lazy chain was used.")
    launched = {item.step: item.end for item in part.on("host") if item.name == "launch"}
    sampled = {item.step: item.end for item in part.on("forward") if item.name == "sample"}
    processed = {item.step: item.start for item in part.on("host") if item.name == "process"}
    wasted: dict[int, list[str]] = {}
    for mark in named(part, "wasted row"):
        wasted.setdefault(number(mark, "step"), []).append(word(mark, "rid"))
    at = {step: row for row, step in enumerate(marks)}
    spans: list[list[LaneItem]] = [[] for _ in marks]
    rows, links, lines = list[LaneRow](), list[LaneLink](), list[tuple[object, ...]]()
    for step, mark in marks.items():
        source, whose = number(mark, "source"), " ".join(ran[step].rids)  # 0: the host's tokens
        places = " ".join(map(str, numbers(mark, "places")))  # of the other array's tokens
        built = max(mark.time, launched.get(step, mark.time))
        computed = max(built, sampled.get(step, part.end))
        read = max(computed, processed.get(step, part.end))
        for kind, start, end in (("promised", built, computed), ("stored", computed, read)):
            if end > start:
                about = f"tokens of step {step} ({whose}): {WORDS[kind]}"
                label = whose if kind == "promised" else ""
                item = LaneItem(kind, start, end, label, about=about, data={"step": step})
                spans[at[step]].append(item)
        data: Data = {"source": source, "step": step}
        if source in at:
            about = f"step {step} is built on step {source}'s array, places {places}"
            item = LaneItem("read", mark.time, mark.time, about=about, data=data)
            spans[at[source]].append(item)
            ends = (at[source], mark.time), (at[step], mark.time)
            links.append(LaneLink("link", *ends, about=about))
        elif ran[step].mode == "decode" and not source:
            about = f"step {step} is built on tokens that the host has read"
            data = {"step": step}
            item = LaneItem("flag-head", mark.time, mark.time, about=about, data=data)
            spans[at[step]].append(item)
        lost = wasted.get(step, [])
        tail = f"wasted: {short(', '.join(lost), 30)}" if lost else ""
        name = f"step {step}" + f" on {source}" * (source > 0)
        rows.append(LaneRow(name, spans[at[step]], ran[step].mode, tail=tail))
        lines.append((step, ran[step].mode, f"step {source}" if source else "the host",
                      short(places, 12), ms(built), ms(computed), ms(read),
                      short(" ".join(lost), 12)))  # fmt: skip
    chained = sum(number(mark, "source") > 0 for mark in marks.values())
    anew = sum(item.kind == "flag-head" for row in spans for item in row)
    surplus = sum(len(wasted.get(step, ())) for step in marks)
    return Scene(
        f"lazy_chain: {chained} of {len(marks)} steps are built on arrays without numbers",
        about_run(trace, shown),
        [
            Part("Arrays of tokens", "one a step; from its launch until the host reads it",
                 [Lanes(rows, part.end, links=links)]),
            Part("Step by step", "places: which of the other array's tokens",
                 [TextTable(HEADS, lines)]),
        ],
        LEGEND,
        [f"{many(anew, 'decode step')} on tokens from the host; {many(surplus, 'token')} wasted"],
    )  # fmt: skip
