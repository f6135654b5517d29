"""The effect of a long prompt on decoding requests, and attention in a mixed batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...loops.run import Run
from ...recipes import RECIPES, Recipe
from ...trace import Trace
from ...trace.sides import one_side, sides
from ..layout import make_view
from ..looks import SHARES
from ..pd_or_mixed import both, longest_pause, pause
from ..runs import LEGEND, lanes_of
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene
from ..state import arrivals
from ..units import ms
from ..views.marks import named, word
from ..views.steps import StepWork, steps_of, work_of

# -- Runs from their requests' side: a lane for each, with its share of every step -----------------


def prefill_stage() -> Scene:
    """Draw one long prompt and two decoding requests, in three ways."""
    recipe = RECIPES["mixed_chunk"]
    chunks = {
        "whole prompts": (1024, False),
        "chunked prefill": (24, False),
        "chunked and mixed with decodes": (24, True),
    }
    runs = {
        name: Recipe("overlap", recipe.requests, replace(
            recipe.config, chunked_prefill_size=size, enable_mixed_chunk=is_mixed)).play()
        for name, (size, is_mixed) in chunks.items()
    }  # fmt: skip
    whole, chunked, mixed = map(pause, runs.values())
    title = f"Decodes pause {whole} for a whole prompt, {chunked} for its chunks, {mixed} if mixed"
    return requests_of(runs, title, ["b", "long"])


def pd_against_mixed() -> Scene:
    """Draw the same requests on two devices with a KV transfer, and mixed on one."""
    names = ("PD separation, two devices", "mixed chunks, one device")
    runs = dict(zip(names, both(RECIPES["pd"].requests), strict=True))
    apart, mixed = map(pause, runs.values())
    title = f"Beside long prompts decodes pause {apart} on two devices, {mixed} if mixed on one"
    return requests_of(runs, title, ["d", "e"])


def requests_of(runs: Mapping[str, Run], title: str, rids: Sequence[str]) -> Scene:
    """Draw some requests of each run under its name, and the devices where there are several."""
    steps = {name: works(run.trace) for name, run in runs.items()}
    rows = {name: [row_of(run.trace, rid, steps[name]) for rid in rids]
            + (devices_of(run.trace) if len(sides(run.trace)) > 1 else [])
            for name, run in runs.items()}  # fmt: skip
    end = max(item.end for some in rows.values() for row in some for item in row.spans)
    parts = [
        Part(
            name,
            f"{len(steps[name])} steps, {ms(run.trace.end)} ms",
            [Lanes(rows[name], end, flags=pause_flags(run))],
        )
        for name, run in runs.items()
    ]
    about = next(iter(runs.values())).trace.what_ran
    about = f"{about}, simulated time; a box is a step, with a prompt's tokens"
    return Scene(title, about, parts, {kind: LEGEND[kind] for kind in SHARES})


def pause_flags(run: Run) -> list[LaneItem]:
    """Return a flag where the longest pause of a request begins, and one where it ends."""
    rid, start, end = longest_pause(run)
    words = {start: f"a token of {rid}", end: f"{rid} paused {ms(end - start)} ms"}
    return [LaneItem("flag", time, time, said) for time, said in words.items()] if rid else []


def works(trace: Trace) -> list[StepWork]:
    """Return the work of every step by request, by time; of both schedulers where there are two."""
    steps = [step for side in sides(trace) for step in steps_of(one_side(trace, side))]
    return sorted(steps, key=lambda step: (step.start, step.step))


def row_of(trace: Trace, rid: str, steps: list[StepWork]) -> LaneRow:
    """Return a request's computed work and its waits, as a lane.

    It waits from its arrival, and from each retraction.
    """
    work, waits = work_of(steps, rid), list[LaneItem]()
    back = [mark.time for mark in named(trace, "retraction") if word(mark, "rid") == rid]
    for since in [*arrivals(trace).get(rid, []), *back]:
        begin = max([since, *(item.end for item in work if item.start <= since < item.end)])
        until = min((item.start for item in work if item.start >= begin), default=begin)
        if until > begin:
            waits.append(LaneItem("waiting", begin, until, "waiting", about=f"{rid} waits"))
    return LaneRow(rid, [*waits, *work], "request")


def devices_of(trace: Trace) -> list[LaneRow]:
    """Return the devices, with a box for each step, and the KV transfer between them."""
    rows = list[LaneRow]()
    for row in lanes_of(make_view(trace), trace.end).rows:
        spans = list[LaneItem]()
        for item in row.spans:
            if item.kind == "sample" and spans:
                spans[-1] = replace(spans[-1], end=item.end)
            else:
                spans.append(
                    replace(item, label=item.brief if item.kind == "forward" else item.label)
                )
        rows.append(replace(row, spans=spans))
    return [row for row in rows if any(of.kind in ("forward", "transfer") for of in row.spans)]
