"""The chain of lazy arrays: each step's tokens as a graph, and the steps built on them."""

from __future__ import annotations

from ...trace import Trace
from ..scene import LaneItem, LaneLink, LaneRow, Lanes, Part, Scene, about_run
from .marks import named, needed, number, short, word
from .steps import opening

MOST_STEPS = 18
LEGEND = {
    "promised": "lazy: a graph without numbers",
    "stored": "computed, not read by the host yet",
    "read": "the next step is built on it",
    "flag-head": "built on tokens from the host: a new chain",
}


def scene(trace: Trace) -> Scene:
    """Draw one lane for each step's array of tokens, from its launch until the host reads it."""
    part, shown = opening(trace, MOST_STEPS)
    when = {(item.name, item.step): item for item in part.slices}
    ran = {step for name, step in when if name == "forward"}
    marks = needed(part, "lazy tokens", "no lazy chain was used", ran)
    steps = {number(mark, "step"): mark for mark in marks}
    wasted = [(number(mark, "step"), word(mark, "rid")) for mark in named(part, "wasted row")]
    spans: dict[int, list[LaneItem]] = {step: [] for step in steps}
    rows, links = list[LaneRow](), list[LaneLink]()
    for at, (step, mark) in enumerate(steps.items()):
        source, forward = number(mark, "source"), when["forward", step]  # 0: the host's tokens
        launch, sample, process = (
            when.get((name, step)) for name in ("launch", "sample", "process")
        )
        built = max(mark.time, launch.end if launch else 0)
        computed = max(built, sample.end if sample else part.end)
        read = max(computed, process.start if process else part.end)
        data = {"source": source, "step": step}
        for kind, start, end in (("promised", built, computed), ("stored", computed, read)):
            if end > start:
                spans[step].append(LaneItem(kind, start, end, data={"step": step}))
        base = f"step {source}" if source else "tokens from the host"
        about = f"step {step} is built on {base}"
        if source in steps:
            spans[source].append(LaneItem("read", mark.time, mark.time, about=about, data=data))
            src = [*steps].index(source)
            links.append(LaneLink("link", (src, mark.time), (at, mark.time)))
        elif forward.mode == "decode" and not source:
            spans[step].append(LaneItem("flag-head", mark.time, mark.time, about=about, data=data))
        lost = ", ".join(rid for of, rid in wasted if of == step)
        name = f"step {step}" + f" on {source}" * (source > 0)
        tail = f"wasted: {short(lost, 30)}" if lost else ""
        rids = short(" ".join(forward.rids), 16)
        rows.append(LaneRow(name, spans[step], f"{forward.mode} {rids}", tail=tail))
    chained = sum(number(mark, "source") > 0 for mark in steps.values())
    note = "one for each step, from its launch until the host reads it"
    return Scene(
        f"lazy_chain: {chained} of {len(steps)} steps are built on arrays without numbers",
        about_run(trace, shown),
        [Part("Arrays of tokens", note, [Lanes(rows, part.end, links=links)])],
        LEGEND,
    )
