"""The effect of a long prompt on decoding requests, and attention in a mixed batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...loops.run import Run
from ...recipes import RECIPES, Recipe
from ...trace import Trace
from ...trace.sides import one_side, sides
from ..layout import make_view
from ..pd_or_mixed import both, longest_pause, pause
from ..runs import LEGEND, lanes_of
from ..scene import LaneItem, LaneRow, Lanes, Part, Scene
from ..state import arrivals
from ..units import ms
from ..views.marks import named, word
from ..views.steps import StepWork, requests_in, steps_of, work_of

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
    return requests_of(runs, title)


def pd_against_mixed() -> Scene:
    """Draw the same requests on two devices with a KV transfer, and mixed on one."""
    names = ("PD separation, two devices", "mixed chunks, one device")
    runs = dict(zip(names, both(RECIPES["pd"].requests), strict=True))
    apart, mixed = map(pause, runs.values())
    title = f"Beside long prompts decodes pause {apart} on two devices, {mixed} if mixed on one"
    return requests_of(runs, title)


def requests_of(runs: Mapping[str, Run], title: str) -> Scene:
    """Draw each run's requests and devices under its name, with figures of its time."""
    end, parts = max(run.trace.end for run in runs.values()), list[Part]()
    for name, run in runs.items():
        steps = works(run.trace)
        note = (f"{len(steps)} steps, {ms(run.trace.end)} ms; longest pause while a prompt is "
                f"computed: {pause(run)}")  # fmt: skip
        rows = alike([row_of(run.trace, rid, steps) for rid in requests_in(steps)])
        lanes = Lanes([*rows, *devices_of(run.trace)], end, flags=pause_flags(run))
        parts.append(Part(name, note, [lanes]))
    about = next(iter(runs.values())).trace.what_ran
    about = f"{about}, simulated time; a box is a step, with a prompt's tokens or the device's step"
    legend = {
        **LEGEND,
        "flag": "the client receives a token: the longest pause is between two of them",
    }
    return Scene(title, about, parts, legend)


def only(scene: Scene, *names: str) -> Scene:
    """Return a scene of ``requests_of`` with the lanes of the named requests alone."""
    shown = [
        (part, [row for row in show.rows if row.name in names], show.flags)
        for part in scene.parts for show in part.shows if isinstance(show, Lanes)
    ]  # fmt: skip
    end = max(item.end for _, rows, _ in shown for row in rows for item in row.spans)
    parts = [replace(part, shows=[Lanes(rows, end, flags=flags)]) for part, rows, flags in shown]
    return replace(scene, about=scene.about.replace(" or the device's step", ""), parts=parts)


def alike(rows: Sequence[LaneRow]) -> list[LaneRow]:
    """Return rows; neighbours with the same boxes are one row with all of their names."""
    found = list[LaneRow]()
    for row in rows:
        shown, before = ([(it.kind, it.start, it.end, it.label) for it in one.spans]
                         for one in (row, found[-1] if found else row))  # fmt: skip
        if found and shown == before:
            found[-1] = replace(found[-1], name=f"{found[-1].name}, {row.name}", note="requests")
        else:
            found.append(row)
    return found


def pause_flags(run: Run) -> list[LaneItem]:
    """Return a flag where the longest pause of a request begins, and one where it ends."""
    rid, start, end = longest_pause(run)
    words = {start: f"{rid} pauses {ms(end - start)} ms", end: f"next token of {rid}"}
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
    """Return the devices, and the KV transfer between them."""
    rows = [
        replace(row, spans=[
            replace(item, label=item.brief) if item.kind == "forward" else item
            for item in row.spans
        ])
        for row in lanes_of(make_view(trace), trace.end).rows
    ]  # fmt: skip
    return [row for row in rows if any(of.kind in ("forward", "transfer") for of in row.spans)]
