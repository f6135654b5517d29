"""The chain of lazy arrays: when each step's tokens are a mere graph, and who is built on them."""

from __future__ import annotations

from collections import defaultdict

from ...trace import Trace
from ..scene import Data, LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, about_run
from .marks import NothingToShow, named, number, numbers, short, word
from .steps import forwards_of, opening

MOST_STEPS = 18
LEGEND = {
    "promised": "lazy: a graph, no number yet",
    "stored": "computed, and not read by the host",
    "read": "the next step is built on it",
    "flag-head": "built on tokens from the host: the chain begins anew",
}


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
    wasted: dict[int, list[str]] = defaultdict(list)
    for mark in named(part, "wasted row"):
        wasted[number(mark, "step")].append(word(mark, "rid"))
    at = {step: row for row, step in enumerate(marks)}
    spans: dict[int, list[LaneItem]] = {step: [] for step in marks}
    rows, links = list[LaneRow](), list[LaneLink]()
    for step, mark in marks.items():
        source, whose = number(mark, "source"), " ".join(ran[step].rids)  # 0: the host's tokens
        built = max(mark.time, launched.get(step, mark.time))
        computed = max(built, sampled.get(step, part.end))
        read = max(computed, processed.get(step, part.end))
        for kind, start, end in (("promised", built, computed), ("stored", computed, read)):
            if end > start:
                about = f"tokens of step {step} ({whose}): {LEGEND[kind]}"
                label = whose if kind == "promised" else ""
                spans[step].append(LaneItem(kind, start, end, label, about=about,
                                            data={"step": step}))  # fmt: skip
        data: Data = {"source": source, "step": step}
        if source in at:
            places = " ".join(map(str, numbers(mark, "places")))  # of the other array's tokens
            about = f"step {step} is built on step {source}'s array, places {places}"
            spans[source].append(LaneItem("read", mark.time, mark.time, about=about, data=data))
            ends = (at[source], mark.time), (at[step], mark.time)
            links.append(LaneLink("link", *ends, about=about))
        elif ran[step].mode == "decode" and not source:
            about = f"step {step} is built on tokens that the host has read"
            spans[step].append(LaneItem("flag-head", mark.time, mark.time, about=about,
                                        data={"step": step}))  # fmt: skip
        tail = f"wasted: {short(', '.join(wasted[step]), 30)}" if wasted[step] else ""
        name = f"step {step}" + f" on {source}" * (source > 0)
        rows.append(LaneRow(name, spans[step], ran[step].mode, tail=tail))
    chained = sum(number(mark, "source") > 0 for mark in marks.values())
    note = "one a step; from its launch until the host reads it"
    return Scene(
        f"lazy_chain: {chained} of {len(marks)} steps are built on arrays without numbers",
        about_run(trace, shown),
        [Part("Arrays of tokens", note, [Lanes(rows, part.end, links=links)])],
        LEGEND,
    )
