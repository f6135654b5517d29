"""The stages of a request: decoding, and prompts whole, in chunks, or mixed with decodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from ...trace import Slice, Trace
from ..layout import Box, Lane, View, in_order, make_view
from ..pd_or_mixed import both, pause
from ..recipes import recipes, trace_of
from ..runs import side_by_side
from ..scene import Scene
from ..scene_puml import to_puml
from ..state import arrivals
from ..units import ms
from ..views.marks import named, word
from ..views.steps import StepWork, requests_in, steps_of

# -- A run from its requests' side: a lane for each, with what every step did for it ---------------


@dataclass(frozen=True)
class Share(Box):
    """What one step did for one request; ``tokens`` of its prompt, or 0 for a decode."""

    tokens: int = 0

    @property
    def label(self) -> str:
        """The tokens of a prompt; else the step's number."""
        if self.slice.name == "waiting":
            return "waiting"
        return f"{self.tokens} tokens" if self.tokens else str(self.step)


def requests_view(trace: Trace) -> View:
    """A whole run: a lane for each request, and below them the devices and the KV transfers.

    Raises:
        NothingToShow: no step ran.
    """
    whole = make_view(trace)
    steps = works(trace)
    lanes = {rid: Lane(f"request_{_key(rid)}", rid, "request") for rid in requests_in(steps)}
    shares = [share for step in steps for share in _shares(step, lanes)]
    waits = [wait for lane in lanes.values() for wait in _waits(trace, lane, steps)]
    devices = {box.lane for box in whole.boxes if box.slice.name in ("forward", "transfer")}
    below = [box for box in whole.boxes if box.lane in devices]
    return View(
        trace, 0, trace.end, 0, 0,
        (*lanes.values(), *in_order(devices)),
        (*waits, *shares, *below), (), whole.bubbles,
    )  # fmt: skip


def works(trace: Trace) -> list[StepWork]:
    """What every step did for whom, in order of time; where there are two schedulers, of both."""
    steps = [step for part in _sides(trace) for step in steps_of(part)]
    return sorted(steps, key=lambda step: (step.start, step.step))


def _sides(trace: Trace) -> list[Trace]:
    """What each scheduler's side recorded, as a trace of its own."""
    names = sorted({item.lane for item in trace.slices if item.lane.endswith(" host")})
    sides = [name.removesuffix(" host") for name in names]
    return [
        replace(
            trace,
            slices=tuple(item for item in trace.slices if item.lane.startswith(f"{side} ")),
            marks=tuple(mark for mark in trace.marks if mark.attrs.get("side") == side),
        )
        for side in sides
    ] or [trace]


def longest_pause(trace: Trace) -> int:
    """The longest time between two tokens of one request, in nanoseconds."""
    ends: dict[str, int] = {}
    longest = 0
    for step in works(trace):
        for part in step.parts:
            if part.kind == "decode":
                longest = max(longest, step.end - ends.get(part.rid, step.end))
            ends[part.rid] = step.end
    return longest


def _key(rid: str) -> str:
    return "".join(char if char.isalnum() else "_" for char in rid)


def _shares(step: StepWork, lanes: dict[str, Lane]) -> Iterator[Share]:
    for part in step.parts:
        tokens = part.tokens if part.kind in ("prompt", "again") else 0
        item = Slice(step.step, part.rid, part.kind, step.start, step.end, step.step)
        yield Share(item, lanes[part.rid], step.step, tokens)


def _waits(trace: Trace, lane: Lane, steps: list[StepWork]) -> Iterator[Share]:
    """From its arrival, and from each retraction, to the next step that computes something."""
    rid = lane.name
    busy = [step for step in steps if any(part.rid == rid for part in step.parts)]
    back = [mark.time for mark in named(trace, "retraction") if word(mark, "rid") == rid]
    for moment in [*arrivals(trace).get(rid, []), *back]:
        begin = max([moment, *(step.end for step in busy if step.start <= moment < step.end)])
        nexts = [step.start for step in busy if step.start >= begin]
        if nexts and nexts[0] > begin:
            yield Share(Slice(0, rid, "waiting", begin, nexts[0]), lane, 0)


def decode_stage() -> str:
    """The golden run of ``decode``: three requests in memory for two."""
    trace = trace_of("decode")
    retracted = sum(mark.name == "retraction" for mark in trace.marks)
    title = "The decode stage: one token for every running request and step"
    about = (
        f"{trace.loop} on {trace.device}, whole run: {len(works(trace))} steps, "
        f"{ms(trace.end)} ms, {retracted} retraction; {NUMBERS}"
    )
    return to_puml(side_by_side([requests_view(trace)], title, [(trace.loop, about)]))


@cache
def prompt_run(chunk: int, mixed: bool) -> Trace:
    """The workload of ``mixed_chunk`` with chunks of so many tokens (0: prompts stay whole)."""
    recipe = recipes()["mixed_chunk"]
    config = replace(recipe.config, chunked_prefill_size=chunk or 1024, enable_mixed_chunk=mixed)
    return replace(recipe, config=config).run()


def prefill_stage() -> str:
    """One long prompt beside two requests that decode, in three ways."""
    runs = {
        "whole prompts": prompt_run(0, False),
        "chunked prefill": prompt_run(24, False),
        "chunked and mixed with decodes": prompt_run(24, True),
    }
    title = "Prefill whole, chunked, and mixed: what a long prompt does to those who decode"
    pauses = {
        name: f"longest pause between two tokens {ms(longest_pause(trace))} ms"
        for name, trace in runs.items()
    }
    return to_puml(requests_of(runs, pauses, title), [NUMBERS])


def pd_or_mixed() -> str:
    """The same requests on two devices with KV sent between them, and mixed on one."""
    names = ("PD separation, two devices", "mixed chunks, one device")
    runs = dict(zip(names, both(recipes()["pd"].requests), strict=True))
    title = "PD separation against mixed chunks: who waits for a long prompt"
    pauses = {
        name: f"longest pause while a prompt is computed {pause(runs[name])}" for name in runs
    }
    traces = {name: run.trace for name, run in runs.items()}
    return to_puml(requests_of(traces, pauses, title), [NUMBERS])


def requests_of(runs: Mapping[str, Trace], pauses: Mapping[str, str], title: str) -> Scene:
    """The requests of each run, under its name and what it made of their time."""
    names = [
        (name, f"{len(works(trace))} steps, {ms(trace.end)} ms, {pauses[name]}")
        for name, trace in runs.items()
    ]
    return side_by_side([requests_view(trace) for trace in runs.values()], title, names)


NUMBERS = "a box is a step, with its number or its tokens of a prompt"
PICTURES = {
    "decode_stage": decode_stage,
    "chunked_and_mixed_prefill": prefill_stage,
    "pd_against_mixed_chunk": pd_or_mixed,
}
