"""The effect of a long prompt on decoding requests, and attention in a mixed batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...loops.run import Run
from ...recipes import RECIPES, Recipe
from ...trace import Trace
from ...trace.sides import one_side, sides
from ..pd_or_mixed import both, longest_pause, pause
from ..runs import LEGEND
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
    return requests_of(runs, title, ["b", "long", "c"])


def pd_against_mixed() -> Scene:
    """Draw the same requests on two devices with a KV transfer, and mixed on one."""
    names = ("PD separation, two devices", "mixed chunks, one device")
    runs = dict(zip(names, both(RECIPES["pd"].requests), strict=True))
    apart, mixed = map(pause, runs.values())
    title = f"Beside long prompts decodes pause {apart} on two devices, {mixed} if mixed on one"
    return requests_of(runs, title, ["d", "e"])


def requests_of(runs: Mapping[str, Run], title: str, rids: Sequence[str]) -> Scene:
    """Draw some requests of each run under its name, from the arrival of the first of them."""
    steps = {name: works(run.trace) for name, run in runs.items()}
    rows = {name: [told(run, row_of(run.trace, rid, steps[name])) for rid in rids]
            for name, run in runs.items()}  # fmt: skip
    items = [item for some in rows.values() for row in some for item in row.spans]
    start, end = min(item.start for item in items), max(item.end for item in items)
    parts = [
        Part(
            name,
            f"{len(steps[name])} steps, {ms(run.trace.end)} ms",
            [Lanes(rows[name], end, start)],
        )
        for name, run in runs.items()
    ]
    about = next(iter(runs.values())).trace.what_ran
    about = f"{about}, simulated time; a box is a step, with a prompt's tokens"
    return Scene(title, about, parts, {**LEGEND, "transfer": "KV transfer"})


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


def told(run: Run, row: LaneRow) -> LaneRow:
    """Return a request's lane with its KV transfer after the prompt, and its pause.

    The longest pause of a run is a bracket from the end of a step to the end of its next one.
    """
    items, (rid, since, until) = [*row.spans], longest_pause(run)
    computed = max(item.end for item in items if item.kind == "prompt")
    items += [LaneItem("transfer", item.start, item.end, "KV transfer", "KV")
              for item in run.trace.on("kv transfer")
              if row.name in item.rids and item.start >= computed]  # fmt: skip
    if rid == row.name:  # the host reads a token some time after the end of its step
        begin, end = (max(it.end for it in row.spans if it.end <= at) for at in (since, until))
        items.append(LaneItem("span", begin, end, f"{rid} pauses {ms(until - since)} ms"))
    return replace(row, spans=items)
